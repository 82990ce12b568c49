# SPDX-License-Identifier: Apache-2.0
"""The words of --iterations-to-skip: `7 100-120` = step 7 and steps 100 to 120, both included."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_WORD = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


@dataclass(frozen=True)
class StepRanges:
    """A set of steps, which count from 1."""

    ranges: tuple[tuple[int, int], ...] = ()
    """(first, last) of each range, both included."""

    def contains(self, step: int) -> bool:
        """Whether `step` lies in one of the ranges."""
        return any(first <= step <= last for first, last in self.ranges)


def parse_step_ranges(words: Sequence[str]) -> StepRanges:
    """The steps that `words` name. Raises ValueError, which says what is wrong."""
    ranges = []
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is neither a step N nor a range N-M")
        first, last = int(match[1]), int(match[2] or match[1])
        if first < 1:
            raise ValueError(f"{word!r} begins at step {first}; the first step is 1")
        if last < first:
            raise ValueError(f"{word!r} ends before it begins; write {last}-{first}")
        ranges.append((first, last))
    return StepRanges(tuple(ranges))
