# SPDX-License-Identifier: Apache-2.0
"""Split strings that make no sense are refused; parts are disjoint, cover all, and are Megatron-LM's."""

from fractions import Fraction

import pytest

from megatron_core.data.split import parse_split, part_range, split_ranges
from megatron_core.errors import DataError


def sizes(text: str, sequences: int) -> list[int]:
    return [end - first for first, end in split_ranges(parse_split(text), sequences)]


@pytest.mark.parametrize(("sequences", "expected"), [(1000, [949, 50, 1]), (100, [95, 5, 0]), (20, [19, 1, 0])])
def test_sizes(sequences: int, expected: list[int]) -> None:
    assert sizes("949,50,1", sequences) == expected


@pytest.mark.parametrize("sequences", [1, 2, 3, 10, 20, 100, 1000])
@pytest.mark.parametrize("text", ["949,50,1", "969, 30, 1", "1,1,1", "100", "0,1", "98/2/0", "0.9,0.05,0.05"])
def test_parts_are_disjoint_and_cover_everything(text: str, sequences: int) -> None:
    ranges = split_ranges(parse_split(text), sequences)
    assert [i for first, end in ranges for i in range(first, end)] == list(range(sequences))
    floats = [float(share) for share in parse_split(text)]
    bounds = [round(sum(floats[:i]) * float(sequences)) for i in range(4)]
    assert [first for first, _ in ranges] == bounds[:3], "Megatron-LM's own arithmetic"


def test_shares() -> None:
    assert parse_split("969, 30, 1") == (Fraction(969, 1000), Fraction(30, 1000), Fraction(1, 1000))
    assert parse_split("1") == (1, 0, 0)


@pytest.mark.parametrize("text", ["-1,1,0", "90,abc5,5", "0,0,0", "", "1,2,3,4", "nan,1", "1,,1", "1e3,1", "inf"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="--split"):
        parse_split(text)


def test_an_empty_part_that_is_asked_for_is_an_error_with_the_numbers() -> None:
    split = parse_split("949,50,1")
    assert part_range(split, 10, "valid", "p") == (9, 10)
    with pytest.raises(DataError, match=r"test part is empty: --split gives 0\.001 of 10 sequences.*9/1/0"):
        part_range(split, 10, "test", "p")
