# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_core.evaluation.tails import Tail, windows


def test_the_windows_of_the_drawing() -> None:
    found = list(windows([0, 1, 2, 3, 4, 5, 6, 7, 8], 1, context=4, stride=2))
    assert found == [Tail([0, 1, 2, 3, 4], 4), Tail([2, 3, 4, 5, 6], 2), Tail([4, 5, 6, 7, 8], 2)]


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 20), st.data())
def test_each_token_once_with_as_much_context_as_fits(
    length: int, context: int, first: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    scored: list[int] = []
    for tail in windows(range(length), first, context=context, stride=stride):
        scored += list(tail.tokens[-tail.scored :])
        assert len(tail.tokens) == min(context + 1, scored[-1] + 1)
    assert scored == list(range(first, length))


def test_a_tail_needs_something_before_it() -> None:
    for scored in (0, 3):
        with pytest.raises(AssertionError, match=f"{scored} of 3 tokens"):
            Tail([1, 2, 3], scored)
    with pytest.raises(AssertionError, match="nothing stands before"):
        list(windows([1, 2], 0, context=1, stride=1))
