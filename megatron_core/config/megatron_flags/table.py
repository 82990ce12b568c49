# SPDX-License-Identifier: Apache-2.0
"""One answer for each flag that Megatron-LM or Megatron-DeepSpeed ever had: real, alias, harmless, not yet or refused.

A flag that is one of our fields is real and stands in no list. The lists are grouped by reason in the files beside this
one; here they become one table.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from megatron_core.config.megatron_flags.aliases import IMPLIED, RENAMED, SAME_AS, VALUE_ALIASES, VALUES_SAME_AS
from megatron_core.config.megatron_flags.harmless import HARMLESS, HARMLESS_VALUES
from megatron_core.config.megatron_flags.not_yet import NOT_YET, NOT_YET_VALUES
from megatron_core.config.megatron_flags.refused import REFUSED, REFUSED_VALUES

Status = Literal["alias", "harmless", "not yet", "refused"]


@dataclass(frozen=True)
class Rule:
    """What becomes of one flag, or of one value of a flag."""

    status: Status
    reason: str = ""
    """Why it has no effect, is refused, or what is missing."""
    words: tuple[str, ...] = ()
    """An alias's replacement: words of our command line, where {} stands for the values given."""
    yields: bool = False
    """An alias that gives way to anything else on the command line that sets the same field."""


@dataclass(frozen=True)
class FlagTable:
    """Rules by flag name (without dashes before it), and by name and value."""

    flags: Mapping[str, Rule]
    values: Mapping[tuple[str, str], Rule]

    def rule(self, name: str, values: Iterable[str]) -> Rule | None:
        """The rule for a flag with these values, or None: then it is one of our fields, or unknown."""
        return self.values.get((name, " ".join(values))) or self.flags.get(name)


def flag_table() -> FlagTable:
    """The whole table."""
    flags = dict(_flag_rules())
    values = {
        **{key: Rule("alias", "", (f"--{key[0]}", value)) for key, value in VALUE_ALIASES.items()},
        **{key: Rule("alias", "", tuple(words.split())) for key, words in VALUES_SAME_AS.items()},
        **{key: Rule("harmless", reason) for key, reason in HARMLESS_VALUES.items()},
        **{key: Rule("not yet", reason) for key, reason in NOT_YET_VALUES.items()},
        **{key: Rule("refused", reason) for key, reason in REFUSED_VALUES.items()},
    }
    return FlagTable(flags, values)


def _flag_rules() -> Iterator[tuple[str, Rule]]:
    for old, new in RENAMED.items():
        yield old, Rule("alias", "", (f"--{new}", "{}"))
    for name, words in SAME_AS.items():
        yield name, Rule("alias", "", tuple(words.split()))
    for name, words in IMPLIED.items():
        yield name, Rule("alias", "", tuple(words.split()), yields=True)
    groups: tuple[tuple[Status, Mapping[str, str]], ...] = (
        ("harmless", HARMLESS),
        ("not yet", NOT_YET),
        ("refused", REFUSED),
    )
    for status, group in groups:
        for reason, names in group.items():
            rule = Rule(status, reason)
            for name in names.split():
                yield name, rule
