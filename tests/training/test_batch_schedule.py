# SPDX-License-Identifier: Apache-2.0
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.config.training import TrainingConfig
from megatron_core.training.batch_schedule import (
    BatchSchedule,
    RunLength,
    Stage,
    batch_schedule,
    ramp_up,
    run_length,
)

RAMP = ramp_up(8, 8, 300, 32)
SEQ = 10


def walk(schedule: BatchSchedule, steps: int, consumed: int = 0) -> list[int]:
    """Batch sizes of `steps` steps, one after the other: the slow truth."""
    sizes = []
    for _ in range(steps):
        sizes.append(schedule.size_at(consumed))
        consumed += sizes[-1]
    return sizes


def test_grows_in_equal_shares_of_the_samples() -> None:
    assert [stage.size for stage in RAMP.stages] == [8, 16, 24, 32]
    assert [RAMP.size_at(c) for c in (0, 99, 100, 199, 200, 299, 300, 10**9)] == [8, 8, 16, 16, 24, 24, 32, 32]


def test_really_ramps() -> None:
    assert walk(RAMP, 26) == [8] * 13 + [16] * 6 + [24] * 5 + [32] * 2


def test_megatron_script_of_176b() -> None:
    """--rampup-batch-size 192 16 9_765_625 towards 2048 (BLOOM): 116 increments of 84,186.4 samples."""
    bloom = ramp_up(192, 16, 9_765_625, 2048)
    assert len(bloom.stages) == 117
    assert [bloom.size_at(c) for c in (84_186, 84_187, 9_765_624, 9_765_625)] == [192, 208, 2032, 2048]


def test_without_a_ramp_the_size_is_constant() -> None:
    training = TrainingConfig(micro_batch_size=2, global_batch_size=8, train_iters=10)
    assert batch_schedule(training, SEQ) == BatchSchedule((Stage(0, 8),))
    assert batch_schedule(training, SEQ).size_at(0) == 8
    from_the_start = TrainingConfig(micro_batch_size=2, global_batch_size=8, rampup_batch_size=(8, 8, 100))
    assert batch_schedule(from_the_start, SEQ) == batch_schedule(training, SEQ)


def test_a_ramp_over_no_samples_is_none() -> None:
    training = TrainingConfig(micro_batch_size=2, global_batch_size=8, rampup_batch_size=(4, 4, 0))
    assert batch_schedule(training, SEQ).size_at(0) == 8
    assert batch_schedule(training, SEQ).samples_after(3) == 24


def test_length_of_a_run() -> None:
    in_steps = TrainingConfig(micro_batch_size=1, global_batch_size=8, train_iters=10)
    assert run_length(in_steps, batch_schedule(in_steps, SEQ)) == RunLength(steps=10, samples=80)
    in_samples = TrainingConfig(micro_batch_size=1, global_batch_size=8, train_samples=87)
    assert run_length(in_samples, batch_schedule(in_samples, SEQ)) == RunLength(steps=10, samples=80)
    ramped = TrainingConfig(
        micro_batch_size=1, global_batch_size=32, rampup_batch_size=(8, 8, 300), train_samples=320 + 31
    )
    assert run_length(ramped, batch_schedule(ramped, SEQ)) == RunLength(steps=24, samples=320)
    assert RunLength(steps=24, samples=320).remaining_samples(200) == 120


def test_stages_by_tokens() -> None:
    training = TrainingConfig(
        micro_batch_size=2, step_batch_size_schedule="0:4 1K:8 0.002M:16", global_batch_size=16, train_samples=304
    )
    schedule = batch_schedule(training, SEQ)
    assert schedule == BatchSchedule((Stage(0, 4), Stage(100, 8), Stage(200, 16)))
    assert walk(schedule, 40) == [4] * 25 + [8] * 13 + [16] * 2
    assert run_length(training, schedule) == RunLength(steps=44, samples=300)


ramps = st.builds(
    lambda start, increment, count, samples: ramp_up(start, increment, samples, start + increment * count),
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
    assert set(sizes) <= {stage.size for stage in schedule.stages}
    assert schedule.samples_after(steps, consumed) == consumed + sum(sizes)
    assert schedule.steps_within(consumed + sum(sizes), consumed) == steps
    next_size = schedule.size_at(consumed + sum(sizes))
    assert schedule.steps_within(consumed + sum(sizes) + next_size - 1, consumed) == steps
