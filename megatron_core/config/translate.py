# SPDX-License-Identifier: Apache-2.0
"""Megatron's command line to our fields: each flag is looked up, and all that is wrong is collected."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megatron_core.config.arguments import Argument, split_arguments
from megatron_core.config.fields import Field
from megatron_core.config.megatron_flags.table import FlagTable, Rule
from megatron_core.config.values import from_words


@dataclass(frozen=True)
class Translation:
    """What a command line sets."""

    values: Mapping[Field, object]
    notes: tuple[str, ...]
    """Lines for the person who started the run: what was read under another name, what had no effect."""
    problems: tuple[str, ...]
    unreadable: bool
    """Some value could not be read, so that checks of the whole would complain about defaults nobody meant."""


@dataclass
class _Findings:
    """What the walk over the arguments has found so far."""

    values: dict[Field, object] = field(default_factory=dict)
    yielding: list[Argument] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    harmless: list[str] = field(default_factory=list)
    not_yet: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def translate(arguments: Sequence[Argument], fields: Sequence[Field], table: FlagTable) -> Translation:
    """Turn `arguments` into field values by the table; the last of several settings of one field counts."""
    switches = _switches(fields)
    found = _Findings()
    for argument in arguments:
        rule = table.rule(argument.name, argument.values)
        if rule is None:
            _set_field(argument, switches, found, table)
        else:
            _apply(argument, rule, switches, found, table)
    for argument in found.yielding:
        if switches[argument.name][0] not in found.values:
            _set_field(argument, switches, found, table)
    return Translation(found.values, _notes(found), _problems(found), bool(found.unreadable))


def _switches(fields: Sequence[Field]) -> Mapping[str, tuple[Field, bool]]:
    """Flag name -> its field and whether it is the --no- form."""
    switches = {item.flag: (item, False) for item in fields}
    switches.update({f"no-{item.flag}": (item, True) for item in fields if item.type.scalar is bool})
    return switches


def _apply(
    argument: Argument, rule: Rule, switches: Mapping[str, tuple[Field, bool]], found: _Findings, table: FlagTable
) -> None:
    if rule.status == "refused":
        found.refused.setdefault(rule.reason, []).append(_shown(argument, table))
    elif rule.status == "not yet":
        found.not_yet.append(_shown(argument, table))
    elif rule.status == "harmless":
        found.harmless.append(_shown(argument, table))
    else:
        words = [part for word in rule.words for part in (argument.values if word == "{}" else (word,))]
        found.renamed[_shown(argument, table)] = " ".join(words if "{}" not in rule.words else rule.words[:-1])
        for replacement in split_arguments(words):
            if rule.yields:
                found.yielding.append(replacement)
            else:
                _set_field(Argument(argument.spelled, replacement.name, replacement.values), switches, found, table)


def _shown(argument: Argument, table: FlagTable) -> str:
    """The flag as written, with its value where only that value has this answer."""
    if (argument.name, " ".join(argument.values)) in table.values:
        return " ".join((argument.spelled, *argument.values))
    return argument.spelled


def _set_field(
    argument: Argument, switches: Mapping[str, tuple[Field, bool]], found: _Findings, table: FlagTable
) -> None:
    if argument.name not in switches:
        found.unknown.append(_unknown(argument, switches, table))
        return
    target, negative = switches[argument.name]
    try:
        value = from_words(target.type, argument.values)
    except ValueError as error:
        found.unreadable.append(f"{argument.spelled} {error}")
        return
    found.values[target] = not value if negative else value


def _unknown(argument: Argument, switches: Mapping[str, object], table: FlagTable) -> str:
    near = difflib.get_close_matches(argument.name, switches, n=1, cutoff=0.7)
    near = near or difflib.get_close_matches(argument.name, table.flags, n=1, cutoff=0.7)
    return f"unknown flag {argument.spelled}" + (f"; did you mean --{near[0]}?" if near else " (see --help)")


def _notes(found: _Findings) -> tuple[str, ...]:
    notes = []
    if found.renamed:
        notes.append("read as ours: " + ", ".join(f"{old} as {new}" for old, new in found.renamed.items()))
    if found.harmless:
        flags = ", ".join(dict.fromkeys(found.harmless))
        notes.append(f"accepted without effect (docs/configuration.md says why): {flags}")
    return tuple(notes)


def _problems(found: _Findings) -> tuple[str, ...]:
    problems = [*found.unreadable, *found.unknown]
    problems += [f"{', '.join(dict.fromkeys(flags))}: {reason}" for reason, flags in found.refused.items()]
    if found.not_yet:
        problems.append(f"not yet: {', '.join(dict.fromkeys(found.not_yet))}")
    return tuple(problems)
