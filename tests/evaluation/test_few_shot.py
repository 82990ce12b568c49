# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import DataError
from megatron_core.evaluation.few_shot import draw_examples, prompt_of

POOL = list(range(20))


def test_those_that_lm_eval_draws() -> None:
    """What its sampler gave for these rows and its default seed."""
    assert list(draw_examples(POOL[:3], POOL, 2)) == [[14, 3], [2, 18], [3, 11]]


def test_a_question_is_never_its_own_example() -> None:
    for asked, examples in zip(POOL, draw_examples(POOL, POOL, 12)):
        assert len(set(examples)) == 12 and asked not in examples


def test_copies_of_a_question_are_no_examples() -> None:
    pool = [7, 7, 7, 7, 1, 2]
    assert [sorted(examples) for examples in draw_examples([7] * 50, pool, 2)] == [[1, 2]] * 50
    with pytest.raises(DataError, match="only 2 rows differ"):
        list(draw_examples([7] * 50, pool, 3))


def test_a_pool_that_is_too_small() -> None:
    with pytest.raises(DataError, match="20 rows to draw 20 examples from"):
        list(draw_examples(POOL, POOL, 20))
    assert list(draw_examples(POOL, [], 0)) == [[]] * 20


def test_a_blank_line_after_each() -> None:
    assert prompt_of([], "Q") == "Q"
    assert prompt_of(["a b", "c d"], "Q") == "a b\n\nc d\n\nQ"
