# SPDX-License-Identifier: Apache-2.0
"""Plays a schedule against durations: when each action starts and ends, and how much of the time is bubble."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from megatron_core.pipeline.action import Action, Kind, Schedule
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


def play(schedule: Schedule, v: int, duration: Callable[[int, Action], float], *, transfer: float = 0.0) -> Timeline:
    """Starts each action as soon as its stage is free and what it needs is there.

    `duration(stage, action)` is the time of one action; what another stage made comes `transfer` after that has ended.
    A schedule that deadlocks fails an assertion that shows where.
    """
    p = len(schedule)
    last = p * v - 1
    made: dict[tuple[str, int, int], float] = {}  # product as (kind, microbatch, virtual stage) -> when
    stages: list[list[Span]] = [[] for _ in schedule]
    clocks = [0.0] * p
    progress = True
    while progress:
        progress = False
        for stage, steps in enumerate(schedule):
            spans, clock = stages[stage], clocks[stage]
            while len(spans) < len(steps):
                action = steps[len(spans)]
                start = _start(action, stage + action.chunk * p, last, made, transfer if p > 1 else 0.0)
                if start is None:
                    break
                start = max(start, clock)
                clock = start + duration(stage, action)
                spans.append(Span(action, start, clock))
                kind = "I" if action.kind is Kind.B else action.kind.value
                made[kind, action.microbatch, stage + action.chunk * p] = clock
                progress = True
            clocks[stage] = clock
    stuck = {stage: len(spans) for stage, spans in enumerate(stages) if len(spans) < len(schedule[stage])}
    assert not stuck, f"the schedule deadlocks; each arrow waits:\n{excerpt(schedule, stuck)}"
    return Timeline(tuple(map(tuple, stages)))


def _start(action: Action, k: int, last: int, made: dict[tuple[str, int, int], float], transfer: float) -> float | None:
    """When all that an action at virtual stage k needs (`action.needs`) is there; None while something is not made.

    Written out with plain tuples, since a planner plays millions of actions.
    """
    i = action.microbatch
    if action.kind is Kind.F:
        if k == 0:
            return 0.0
        before = made.get(("F", i, k - 1))
        return None if before is None else before + transfer
    if action.kind is Kind.W:
        return made.get(("I", i, k))
    own = made.get(("F", i, k))
    if own is None or k == last:
        return own
    after = made.get(("I", i, k + 1))
    return None if after is None else max(own, after + transfer)


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
