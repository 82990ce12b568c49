# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.config.training import TrainingConfig
from megatron_core.errors import ConfigError
from megatron_core.training.batch_schedule import (
    BatchSchedule,
    RunLength,
    batch_schedule,
    check_batch_schedule,
    run_length,
)

RAMP = BatchSchedule(final=32, start=8, increment=8, ramp_samples=300)


def walk(schedule: BatchSchedule, steps: int, consumed: int = 0) -> list[int]:
    """Batch sizes of `steps` steps, one after the other: the slow truth."""
    sizes = []
    for _ in range(steps):
        sizes.append(schedule.size_at(consumed))
        consumed += sizes[-1]
    return sizes


def test_grows_in_equal_shares_of_the_samples() -> None:
    assert RAMP.sizes() == (8, 16, 24, 32)
    assert [RAMP.size_at(c) for c in (0, 99, 100, 199, 200, 299, 300, 10**9)] == [8, 8, 16, 16, 24, 24, 32, 32]


def test_really_ramps() -> None:
    assert walk(RAMP, 26) == [8] * 13 + [16] * 6 + [24] * 5 + [32] * 2


def test_megatron_script_of_176b() -> None:
    """--rampup-batch-size 192 16 9_765_625 towards 2048 (BLOOM): 116 increments of 84,186.4 samples."""
    bloom = BatchSchedule(final=2048, start=192, increment=16, ramp_samples=9_765_625)
    assert bloom.num_increments == 116
    assert [bloom.size_at(c) for c in (84_186, 84_187, 9_765_624, 9_765_625)] == [192, 208, 2032, 2048]


def test_without_a_ramp_the_size_is_constant() -> None:
    training = TrainingConfig(micro_batch_size=2, global_batch_size=8, train_iters=10)
    assert batch_schedule(training).sizes() == (8,)
    assert batch_schedule(training).size_at(0) == 8
    from_the_start = TrainingConfig(micro_batch_size=2, global_batch_size=8, rampup_batch_size=(8, 8, 100))
    assert batch_schedule(from_the_start) == batch_schedule(training)


def test_a_ramp_over_no_samples_is_none() -> None:
    training = TrainingConfig(micro_batch_size=2, global_batch_size=8, rampup_batch_size=(4, 4, 0))
    assert batch_schedule(training).size_at(0) == 8
    assert batch_schedule(training).samples_after(3) == 24


def test_length_of_a_run() -> None:
    in_steps = TrainingConfig(micro_batch_size=1, global_batch_size=8, train_iters=10)
    assert run_length(in_steps, batch_schedule(in_steps)) == RunLength(steps=10, samples=80)
    in_samples = TrainingConfig(micro_batch_size=1, global_batch_size=8, train_samples=87)
    assert run_length(in_samples, batch_schedule(in_samples)) == RunLength(steps=10, samples=80)
    ramped = TrainingConfig(
        micro_batch_size=1, global_batch_size=32, rampup_batch_size=(8, 8, 300), train_samples=320 + 31
    )
    assert run_length(ramped, batch_schedule(ramped)) == RunLength(steps=24, samples=320)
    assert RunLength(steps=24, samples=320).remaining_samples(200) == 120


ramps = st.builds(
    lambda start, increment, count, samples: BatchSchedule(
        final=start + increment * count, start=start, increment=increment, ramp_samples=samples
    ),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 12),
    st.integers(0, 500),
)


@settings(deadline=None)
@given(schedule=ramps, before=st.integers(0, 30), steps=st.integers(0, 60))
def test_closed_forms_equal_the_walk_from_any_resume_point(schedule: BatchSchedule, before: int, steps: int) -> None:
    consumed = sum(walk(schedule, before))
    sizes = walk(schedule, steps, consumed)
    assert sizes == sorted(sizes)
    assert set(sizes) <= set(schedule.sizes())
    assert schedule.samples_after(steps, consumed) == consumed + sum(sizes)
    assert schedule.steps_within(consumed + sum(sizes), consumed) == steps
    next_size = schedule.size_at(consumed + sum(sizes))
    assert schedule.steps_within(consumed + sum(sizes) + next_size - 1, consumed) == steps


def test_sizes_that_ranks_cannot_share_are_refused_with_the_numbers() -> None:
    check_batch_schedule(RAMP, micro_batch_size=2, dp=4)
    with pytest.raises(ConfigError, match=r"batch sizes 8, 24 are not multiples of micro-batch-size 4 x .* 4 = 16"):
        check_batch_schedule(RAMP, micro_batch_size=4, dp=4)


@pytest.mark.parametrize(("start", "increment"), [(10, 8), (40, 8), (0, 8), (8, 0)])
def test_a_ramp_that_misses_its_end_is_refused(start: int, increment: int) -> None:
    broken = BatchSchedule(final=32, start=start, increment=increment, ramp_samples=300)
    with pytest.raises(ConfigError, match="does not lead to --global-batch-size 32"):
        check_batch_schedule(broken, micro_batch_size=1, dp=1)
