# SPDX-License-Identifier: Apache-2.0
"""Slowest and fastest by busy time, on clocks set by hand."""

import dataclasses

from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.training.stragglers import BusyWindow, Stragglers, find_stragglers
from tests.rank_pool import ranks


class Clock:
    """Shows what it was set to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_busiest_is_the_slowest() -> None:
    assert find_stragglers([2.0, 5.0, 1.0, 5.0, 1.0]) == Stragglers(
        slowest_rank=1, slowest_rank_s=5.0, fastest_rank=2, fastest_rank_s=1.0
    )


def test_alone_a_rank_is_both() -> None:
    clock = Clock()
    window = BusyWindow(single_process_context(), now=clock)
    clock.seconds = 3.0
    assert window.close() == Stragglers(slowest_rank=0, slowest_rank_s=3.0, fastest_rank=0, fastest_rank_s=3.0)
    clock.seconds = 4.0
    assert window.close().slowest_rank_s == 1.0


@ranks(3)
def test_time_blocked_is_not_busy_and_windows_are_apart(ctx: ParallelContext) -> None:
    """Windows of 10 s: the ranks compute 10, 7 and 4 s and are blocked for the rest; then the other way round."""
    clock = Clock()
    ctx = dataclasses.replace(ctx, log=CollectiveLog(now=clock))  # the groups keep theirs, whose time is real
    window = BusyWindow(ctx, now=clock)
    for busy, expected in (((10.0, 7.0, 4.0), (0, 2)), ((4.0, 7.0, 10.0), (2, 0))):
        clock.seconds += busy[ctx.rank]
        ctx.log.begin("all_reduce", "dp", (0, 1, 2))
        clock.seconds += 10.0 - busy[ctx.rank]
        ctx.log.leave()
        slowest, fastest = expected
        assert window.close() == Stragglers(
            slowest_rank=slowest, slowest_rank_s=10.0, fastest_rank=fastest, fastest_rank_s=4.0
        )
