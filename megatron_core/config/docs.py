# SPDX-License-Identifier: Apache-2.0
"""docs/configuration.md, made from the dataclasses and the table of Megatron flags, so that it cannot fall behind."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping

from megatron_core.config.fields import Field, all_fields, section_classes
from megatron_core.config.megatron_flags.table import FlagTable, Rule, flag_table
from megatron_core.config.ranges import REQUIRED
from megatron_core.config.values import ValueType

_INTRODUCTION = """\
<!-- Made by tools/generate_config_docs.py: change the dataclasses or the flag table, then run it. -->
# Configuration

`pretrain_gpt.py --config FILE.yaml [--flags]`: flags override the file, which overrides the defaults below. The file
maps sections to fields (`model: {num_layers: 12}`); a flag is the field's name with dashes, and underscores do as well.
A switch is turned on by `--name` and off by `--no-name`. `--print-config` prints the resolved configuration, and
`--world-size N` says for how many ranks where no launcher does. The printed file reproduces the run. `--dry-run` takes
one step of `--rank R` without memory or GPU and tells what it communicates and needs.
"""

_FLAGS_INTRODUCTION = """\
## Flags of Megatron-LM scripts

Every flag that Megatron-LM or Megatron-DeepSpeed ever had is one of: a field above; the same thing under another name;
accepted without effect, because it only chose between equal implementations (each run says which); not built yet; or
refused, because it would change the numbers or the memory. All that is refused in a command line is said at once.
"""


def render() -> str:
    """The whole page."""
    table = flag_table()
    parts = [
        _INTRODUCTION,
        *(_section(name, cls) for name, cls in section_classes().items()),
        _FLAGS_INTRODUCTION,
        _aliases(table),
        _grouped("Accepted without effect", "harmless", table),
        _grouped("Not yet", "not yet", table),
        _grouped("Refused", "refused", table),
    ]
    return "\n".join(parts)


def field_docs(cls: type) -> Mapping[str, str]:
    """The docstring beneath each field of a section, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef), f"{cls} is not a class"
    docs = {}
    for statement, following in zip(body.body, body.body[1:]):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def _section(name: str, cls: type) -> str:
    docs = field_docs(cls)
    rows = [_row(field, docs[field.name]) for field in all_fields() if field.section == name]
    head = f"## {name}\n\n{(inspect.getdoc(cls) or '').strip()}\n\n| flag | value | default | |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _row(field: Field, doc: str) -> str:
    default = "required" if field.name in REQUIRED else _default(field.type, field.default)
    cells = (f"`--{field.flag}`", field.type.describe(), default, doc)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(kind: ValueType, default: object) -> str:
    if default in (None, (), ""):
        return ""
    if kind.scalar is bool:
        return "on" if default else "off"
    return " ".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _aliases(table: FlagTable) -> str:
    lines = []
    for shown, rule in _rules(table):
        if rule.status == "alias":
            words = " ".join(rule.words).replace("{}", "VALUE")
            lines.append(f"- `{shown}` → `{words}`" + (", unless set otherwise" if rule.yields else ""))
    return "### Read under our name\n\n" + "\n".join(lines) + "\n"


def _grouped(title: str, status: str, table: FlagTable) -> str:
    groups: dict[str, list[str]] = {}
    for shown, rule in _rules(table):
        if rule.status == status:
            groups.setdefault(rule.reason, []).append(f"`{shown}`")
    items = [f"- {reason}: {', '.join(flags)}" for reason, flags in groups.items()]
    return f"### {title}\n\n" + "\n".join(items) + "\n"


def _rules(table: FlagTable) -> Iterator[tuple[str, Rule]]:
    for name, rule in table.flags.items():
        yield f"--{name}", rule
    for (name, value), rule in table.values.items():
        yield f"--{name} {value}", rule
