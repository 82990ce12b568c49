# SPDX-License-Identifier: Apache-2.0
"""What is written down of a step that was taken; that the runtime does its work is test_runtime's."""

import time

import pytest
import torch
from torch import nn

from benchmarks.plan_timeline import sleep
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.recorded import RecordedRuntime, timeline
from megatron_core.pipeline.schedules import build
from megatron_core.pipeline.timeline import Span
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue
from tests.rank_pool import ranks

LONG = 0.1


class Slow(nn.Module):
    """One weight; the first stage takes its time."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.first = first

    def forward(self, hidden: torch.Tensor | None, batch: Microbatch) -> torch.Tensor:
        if self.first:
            time.sleep(LONG)
        y = (torch.ones(2, 1, 1) if hidden is None else hidden) * self.weight
        return y if self.first else y.squeeze(-1).t()


@ranks(2, pp=2)
def test_every_action_has_its_span_and_waiting_is_none_of_it(ctx: ParallelContext) -> None:
    program = communicate(build("1f1b", 2, 1, 2), 1)[ctx.pp.coordinate]
    runtime = RecordedRuntime([Slow(first=ctx.is_first_stage)], ctx, WeightGradientQueue(), (2, 1, 1), torch.float32)  # type: ignore[list-item]
    batch = Microbatch(position_ids=torch.arange(2)[None], loss_mask=torch.ones(1, 2, dtype=torch.bool))
    runtime.run(program, [batch] * 2, 1.0)
    assert [span.action for span in runtime.spans] == [item for item in program if isinstance(item, Action)]
    starts = [span.start for span in runtime.spans]
    assert starts == sorted(starts) and all(span.end >= span.start for span in runtime.spans)
    forwards = [span for span in runtime.spans if span.action.kind is Kind.F]
    if ctx.is_first_stage:
        assert all(span.end - span.start >= LONG for span in forwards)
    else:
        # It has waited for both; had that been counted, its spans would fill all of the time.
        waited = forwards[1].start - runtime.spans[0].end
        assert waited > 0 or forwards[1].end - forwards[1].start < LONG


def test_a_timeline_begins_with_the_first_start() -> None:
    action = Action(Kind.F, 0, 0)
    found = timeline([(Span(action, 5.0, 6.0),), (Span(action, 6.5, 7.0),)])
    assert found.stages[1][0] == Span(action, 1.5, 2.0) and found.makespan == 2.0


@pytest.mark.slow
def test_sleeping_stages_take_their_time_as_simulated() -> None:
    """8 ranks with the real program, runtime and messages; a machine that is busy may be late at it."""
    measured, simulated = sleep()
    assert simulated.timeline.bubble == pytest.approx(measured.timeline.bubble, rel=0.1)
    assert simulated.timeline.makespan == pytest.approx(measured.timeline.makespan, rel=0.1)
