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
