# SPDX-License-Identifier: Apache-2.0
"""Sets of numbers as the kernel and Slurm write them: 0-3,8. Pure."""

from collections.abc import Iterable


def parse_number_ranges(text: str) -> tuple[int, ...]:
    """ "0-3,8" -> (0, 1, 2, 3, 8); an empty text is an empty set. Raises ValueError for anything else."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        numbers += range(int(first), int(last if dash else first) + 1)
    return tuple(numbers)


def format_number_ranges(numbers: Iterable[int]) -> str:
    """(8, 0, 1, 2, 3) -> "0-3,8"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
