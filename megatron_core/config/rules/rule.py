# SPDX-License-Identifier: Apache-2.0
"""What a rule over several fields is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from megatron_core.config.run import RunConfig


@dataclass(frozen=True)
class Rule:
    """A check of a config on a number of ranks, and the fields whose own range it builds on.

    Where one of those is out of range already the check is left out: it has nothing to add, and needs no guards.
    """

    check: Callable[[RunConfig, int], Iterator[str]]
    needs: str = ""
