# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_core.training.doctor.number_ranges import format_number_ranges, parse_number_ranges


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8\n", (0, 1, 2, 3, 8)), ("5", (5,)), ("", ()), ("\n", ()), ("0-1,4-5", (0, 1, 4, 5))]
)
def test_as_the_kernel_writes_them(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_number_ranges(text) == numbers
    assert format_number_ranges(numbers) == text.strip()


@given(st.sets(st.integers(0, 300)))
def test_there_and_back(numbers: set[int]) -> None:
    assert parse_number_ranges(format_number_ranges(numbers)) == tuple(sorted(numbers))


def test_anything_else_is_an_error() -> None:
    with pytest.raises(ValueError):
        parse_number_ranges("a-b")
