# SPDX-License-Identifier: Apache-2.0
"""The numbers of a global batch do not depend on the layout; validation reads each sample once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data.sampler import PADDING, training_step, validation_steps


def batch(consumed: int, gbs: int, mbs: int, dp: int) -> list[int]:
    ranks = [
        training_step(consumed, global_batch_size=gbs, micro_batch_size=mbs, dp_size=dp, dp_coordinate=r)
        for r in range(dp)
    ]
    return [n for plan in ranks for numbers in plan for n in numbers]


def test_microbatches_of_a_coordinate() -> None:
    plan = training_step(100, global_batch_size=8, micro_batch_size=2, dp_size=2, dp_coordinate=1)
    assert plan == ((102, 103), (106, 107))


@pytest.mark.parametrize("iteration", range(10))
def test_the_set_of_a_batch_is_the_same_at_every_layout(iteration: int) -> None:
    for dp, mbs in ((1, 4), (2, 2), (2, 1), (4, 1), (1, 1)):
        assert sorted(batch(4 * iteration, 4, mbs, dp)) == list(range(4 * iteration, 4 * iteration + 4))


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_validation_reads_each_sample_once_with_equal_work(samples: int, mbs: int, dp: int, m: int) -> None:
    steps = [
        list(
            validation_steps(samples, global_batch_size=m * mbs * dp, micro_batch_size=mbs, dp_size=dp, dp_coordinate=r)
        )
        for r in range(dp)
    ]
    numbers = [n for rank in steps for plan in rank for row in plan for n in row]
    assert sorted(n for n in numbers if n != PADDING) == list(range(samples))
    shapes = [[[len(row) for row in plan] for plan in rank] for rank in steps]
    assert all(shape == shapes[0] for shape in shapes)
    assert all(0 < len(plan) <= m for plan in steps[0])
    assert numbers.count(PADDING) < mbs * dp


def test_batches_that_do_not_divide_are_bugs() -> None:
    with pytest.raises(AssertionError):
        batch(0, 6, 4, 1)
    with pytest.raises(AssertionError):
        list(validation_steps(3, global_batch_size=6, micro_batch_size=4, dp_size=1, dp_coordinate=0))
