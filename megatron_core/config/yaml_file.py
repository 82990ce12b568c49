# SPDX-License-Identifier: Apache-2.0
"""Run configurations as YAML: one mapping a section, field names as keys. Read by SafeLoader: data, never code."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml

from megatron_core.config.fields import Field
from megatron_core.config.run import RunConfig
from megatron_core.config.values import from_yaml, to_yaml
from megatron_core.errors import ConfigError


@dataclass(frozen=True)
class YamlValues:
    """What a file sets, and all that is wrong with it."""

    values: Mapping[Field, object]
    problems: tuple[str, ...]


def read_yaml(text: str, source: str, fields: Sequence[Field]) -> YamlValues:
    """Check `text` against the fields; `source` names the file in messages. ConfigError if it is not YAML."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        document = loader.construct_document(root) if root is not None else None
    except (yaml.YAMLError, ValueError) as error:  # an impossible date is a ValueError
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    problems = [f"{source}: {key} is given twice" for key in _duplicate_keys(root)]
    if document is None:
        document = {}
    sections = sorted({field.section for field in fields})
    if not isinstance(document, dict):
        raise ConfigError(f"{source} must map sections ({', '.join(sections)}) to their fields")
    by_name = {(field.section, field.name): field for field in fields}
    values: dict[Field, object] = {}
    for section, entries in document.items():
        if section not in sections:
            problems.append(f"{source}: {_unknown_section(str(section), sections, fields)}")
        elif entries is not None and not isinstance(entries, dict):
            problems.append(f"{source}: {section} must map fields to values, not be {entries!r}")
        else:
            for key, value in (entries or {}).items():
                field = by_name.get((section, str(key).replace("-", "_")))
                if field is None:
                    problems.append(f"{source}: {_unknown_key(section, str(key), fields)}")
                    continue
                try:
                    values[field] = from_yaml(field.type, value)
                except ValueError as error:
                    problems.append(f"{source}: {section}.{key} {error}")
    return YamlValues(values, tuple(problems))


def dump_yaml(config: RunConfig) -> str:
    """The whole config as YAML that `read_yaml` turns into the same config."""
    document = {
        section.name: {
            field.name: to_yaml(getattr(getattr(config, section.name), field.name))
            for field in dataclasses.fields(getattr(config, section.name))
        }
        for section in dataclasses.fields(config)
    }
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes line breaks that are not newlines, which PyYAML writes as they are and does not read back."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """A string, between double quotes where it has such a break."""
        style = '"' if any(char in data for char in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _unknown_section(name: str, sections: Sequence[str], fields: Sequence[Field]) -> str:
    owners = [field.section for field in fields if field.name == name.replace("-", "_")]
    if owners:
        return f"{name} belongs under `{owners[0]}:`"
    near = difflib.get_close_matches(name, sections, n=1)
    hint = f"did you mean {near[0]}?" if near else f"sections are {', '.join(sections)}"
    return f"unknown section {name}; {hint}"


def _unknown_key(section: str, key: str, fields: Sequence[Field]) -> str:
    owners = [field.section for field in fields if field.name == key.replace("-", "_")]
    if owners:
        return f"{section}.{key} belongs under `{owners[0]}:`"
    near = difflib.get_close_matches(key, [field.name for field in fields if field.section == section], n=1)
    return f"unknown key {section}.{key}" + (f"; did you mean {near[0]}?" if near else "")


def _duplicate_keys(root: yaml.Node | None) -> list[str]:
    """Keys given twice, of the file and of its sections: YAML keeps the last one without a word."""
    twice = []
    if isinstance(root, yaml.MappingNode):
        twice += _repeated(root)
        for key, value in root.value:
            if isinstance(value, yaml.MappingNode):
                twice += [f"{key.value}.{name}" for name in _repeated(value)]
    return twice


def _repeated(node: yaml.MappingNode) -> list[str]:
    names = [str(key.value) for key, _ in node.value]
    return sorted({name for name in names if names.count(name) > 1})
