# SPDX-License-Identifier: Apache-2.0
"""The fields of all sections as one list: what the command line, the YAML file and the documentation are made from."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from megatron_core.config.run import RunConfig
from megatron_core.config.values import ValueType, value_type


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of one section."""

    section: str
    name: str
    default: object
    type: ValueType

    @property
    def flag(self) -> str:
        """Its flag without the leading dashes."""
        return self.name.replace("_", "-")


def section_classes() -> Mapping[str, type]:
    """Section name -> its dataclass, in the order of RunConfig."""
    return typing.get_type_hints(RunConfig)


def all_fields() -> tuple[Field, ...]:
    """Every field of every section; no two sections share a name, so a flag needs no section before it."""
    found = []
    for section, cls in section_classes().items():
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            kind = value_type(hints[field.name])
            found.append(Field(section=section, name=field.name, default=field.default, type=kind))
    return tuple(found)


def replace_fields(config: RunConfig, values: Mapping[Field, object]) -> RunConfig:
    """A copy of `config` with these fields set."""
    changes: dict[str, dict[str, object]] = {}
    for field, value in values.items():
        changes.setdefault(field.section, {})[field.name] = value
    sections = {name: dataclasses.replace(getattr(config, name), **new) for name, new in changes.items()}
    return dataclasses.replace(config, **sections)
