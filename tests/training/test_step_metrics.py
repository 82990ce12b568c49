# SPDX-License-Identifier: Apache-2.0
"""That the columns are right at every layout is proved end to end (OPS-04)."""

from dataclasses import replace
from typing import Any

import pytest

from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.parallel.groups import group_members
from megatron_core.parallel.rank_grid import RankGrid
from megatron_core.training.live_bytes import counted
from megatron_core.training.metrics import StepMetrics
from megatron_core.training.step_metrics import AXES, StepMeter
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


def test_exposed_communication_is_that_of_the_step_s_own_time_and_the_largest_of_any_rank() -> None:
    first, second = run_ranks(waited, 2, FAMILIES["gpt2"])
    assert first == second == [{"dp": 7.0, "pp": 5.0}, {}]


def waited(rank: int, world_size: int, flags: str) -> list[dict[str, float] | None]:
    """Two steps of a rank whose clock is ours: it waits in the first one and between them."""
    run, state = start_rank(rank, world_size, flags)
    time = [0.0]
    log = CollectiveLog(now=lambda: time[0])
    run = replace(run, ctx=replace(run.ctx, log=log))
    meter, found = StepMeter(run), []

    def wait(group: str, seconds: float) -> None:
        log.begin("all_reduce", group, (0, 1))
        time[0] += seconds
        log.leave()

    state, outcome = train_step(run, state)
    wait("dp", 100.0)
    with meter.watch(run, 1):
        wait("dp", 3.0 + rank)
        wait("dp", 3.0)
        wait("pp", 5.0 - rank)
    wait("dp", 100.0)
    found.append(meter.metrics(run, state, outcome, seconds=1.0).exposed_comm_s)
    with meter.watch(run, 1):
        pass
    found.append(meter.metrics(run, state, outcome, seconds=1.0).exposed_comm_s)
    return found


def test_every_group_is_one_of_the_axes() -> None:
    grid = RankGrid(tp=2, pp=2, dp=2)
    assert tuple(sorted(name for name, _ in group_members(grid, 0))) == tuple(sorted(AXES))


def test_one_process_has_no_axes_and_a_line_that_knows_nothing_leaves_the_key_out() -> None:
    run, state = start_rank(0, 1, FAMILIES["gpt2"])
    state, outcome = train_step(run, state)
    meter = StepMeter(run)
    line = meter.metrics(run, state, outcome, seconds=1.0)
    assert line.exposed_comm_s == {} and line.record()["exposed_comm_s"] == {}
    assert "exposed_comm_s" not in replace(line, exposed_comm_s=None).record()


def test_bytes_by_category_are_counted_where_asked_for_and_are_the_worst_rank_s() -> None:
    flags = f"{FAMILIES['gpt2']} --log-memory-interval 2 --pipeline-model-parallel-size 2"
    (first, mine), (second, others) = run_ranks(counted_lines, 2, flags)
    assert first == second and mine != others
    assert ["memory_bytes" in line for line in first] == [False, True, False]
    assert first[1]["memory_bytes"] == {category: max(mine[category], others[category]) for category in mine}


def counted_lines(rank: int, world_size: int, flags: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Lines of three steps, and what this rank counts by itself."""
    run, state = start_rank(rank, world_size, flags)
    meter, lines = StepMeter(run), []
    for _ in range(3):
        with meter.watch(run, state.step + 1):
            state, outcome = train_step(run, state)
        lines.append(replace(meter.metrics(run, state, outcome, seconds=1.0), exposed_comm_s=None).record())
    with counted(run) as live:
        train_step(run, state)
    return lines, live.peaks()
