# SPDX-License-Identifier: Apache-2.0
"""Plays a schedule against durations: when each action starts and ends, and how much of the time is bubble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megatron_core.pipeline.action import Action, Kind, Product, Schedule, makes, needs, virtual_stage
from megatron_core.pipeline.excerpt import excerpt


@dataclass(frozen=True)
class Span:
    """One action's time on its stage, in the unit of the durations."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of every stage, in order."""

    stages: tuple[tuple[Span, ...], ...]

    @property
    def makespan(self) -> float:
        """Time from the first start (0) to the last end."""
        return max(spans[-1].end for spans in self.stages)

    @property
    def bubble(self) -> float:
        """Idle over busy time of the busiest stage: (T - T_ideal) / T_ideal."""
        busy = max(sum(span.end - span.start for span in spans) for spans in self.stages)
        return (self.makespan - busy) / busy


def play(schedule: Schedule, v: int, duration: Callable[[int, Action], float]) -> Timeline:
    """Starts each action as soon as its stage is free and what it needs is made; transfers take no time.

    `duration(stage, action)` is the time of one action. A schedule that deadlocks fails an assertion that shows where.
    """
    p = len(schedule)
    made: dict[Product, float] = {}  # -> when
    stages: list[list[Span]] = [[] for _ in schedule]
    progress = True
    while progress:
        progress = False
        for stage, steps in enumerate(schedule):
            spans = stages[stage]
            while len(spans) < len(steps):
                action = steps[len(spans)]
                k = virtual_stage(stage, action.chunk, p)
                wanted = needs(action, k, last=p * v - 1)
                if any(product not in made for product in wanted):
                    break
                start = max([spans[-1].end if spans else 0.0, *(made[product] for product in wanted)])
                spans.append(Span(action, start, start + duration(stage, action)))
                made[makes(action, k)] = spans[-1].end
                progress = True
    stuck = {stage: len(spans) for stage, spans in enumerate(stages) if len(spans) < len(schedule[stage])}
    assert not stuck, f"the schedule deadlocks; each arrow waits:\n{excerpt(schedule, stuck)}"
    return Timeline(tuple(map(tuple, stages)))


def simulate_unit(
    schedule: Schedule,
    v: int,
    *,
    forward: float = 1.0,
    backward: float = 2.0,
    input_grad: float = 1.0,
    weight_grad: float = 1.0,
) -> Timeline:
    """Plays a schedule whose actions of one kind all take the same time: equal stages."""
    times = {Kind.F: forward, Kind.B: backward, Kind.I: input_grad, Kind.W: weight_grad}
    return play(schedule, v, lambda stage, action: times[action.kind])
