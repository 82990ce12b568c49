# SPDX-License-Identifier: Apache-2.0
"""The command line taken apart into flags with the words after them.

A pretraining command has no positional words, so a flag's values are all words up to the next one that starts with two
dashes; that holds for flags that we do not know as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_core.errors import ConfigError


@dataclass(frozen=True)
class Argument:
    """One flag as it was given."""

    spelled: str
    """As written, with its dashes."""
    name: str
    """Without leading dashes, underscores turned to dashes."""
    values: tuple[str, ...]


def split_arguments(argv: Sequence[str]) -> tuple[Argument, ...]:
    """Group `argv` by flag; `--flag=value` gives the value too. Raises ConfigError for words before the first flag."""
    groups: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or word == "-h":
            groups.append(word.split("=", 1))
        elif groups:
            groups[-1].append(word)
        else:
            raise ConfigError(f"{word!r} stands before any flag; values follow flags, such as --config FILE.yaml")
    return tuple(Argument(flag, flag.lstrip("-").replace("_", "-"), tuple(values)) for flag, *values in groups)
