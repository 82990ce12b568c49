# SPDX-License-Identifier: Apache-2.0
"""That the columns are right at every layout is proved end to end (OPS-04)."""

import pytest

from megatron_core.training.metrics import StepMetrics
from megatron_core.training.step_metrics import StepMeter
from megatron_core.training.train_step import train_step
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks


def measured(rank: int, world_size: int, flags: str) -> StepMetrics:
    run, state = start_rank(rank, world_size, flags)
    meter = StepMeter(run)
    state, outcome = train_step(run, state)
    return meter.metrics(run, state, outcome, seconds=1.0 + rank)


def test_times_are_the_slowest_rank_s_on_every_rank() -> None:
    first, second = run_ranks(measured, 2, f"{FAMILIES['gpt2']} --device-peak-tflops 0.5")
    assert first == second
    assert (first.step, first.consumed_samples, first.consumed_tokens, first.batch_size) == (1, 8, 128, 8)
    assert first.step_time_s == 2.0 and first.tokens_per_s == 64.0
    assert first.mfu == pytest.approx(first.tflops_per_device / 0.5)
    assert not first.skipped and first.peak_memory_bytes > 0


def test_stragglers_are_found_once_a_logging_window_where_asked_for() -> None:
    first, second = run_ranks(windows, 2, f"{FAMILIES['gpt2']} --log-straggler --log-interval 2")
    assert [line.stragglers is None for line in first] == [True, False, True, False]
    assert [line.stragglers for line in first] == [line.stragglers for line in second]
    assert {"slowest_rank", "slowest_rank_s", "fastest_rank", "fastest_rank_s"} <= first[1].record().keys()
    assert "stragglers" not in first[0].record()


def windows(rank: int, world_size: int, flags: str) -> list[StepMetrics]:
    run, state = start_rank(rank, world_size, flags)
    meter, lines = StepMeter(run), []
    for _ in range(4):
        state, outcome = train_step(run, state)
        lines.append(meter.metrics(run, state, outcome, seconds=1.0))
    return lines
