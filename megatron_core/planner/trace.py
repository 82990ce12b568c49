# SPDX-License-Identifier: Apache-2.0
"""A planned step as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing show.

A line a stage, named by the ranks that do the same there; a slice an action, and after the last one what is left of
reductions and the update. Beside the slices a counter follows the activations that each stage holds.
"""

from collections.abc import Iterator
from typing import Any

from megatron_core.parallel.rank_grid import RankGrid
from megatron_core.pipeline.action import KIND_NAMES, Action, Kind
from megatron_core.pipeline.timeline import Span, Timeline
from megatron_core.planner.step_time import StepTime

Event = dict[str, Any]


def chrome_trace(timeline: Timeline, grid: RankGrid, step: StepTime | None = None) -> dict[str, Any]:
    """The trace as an object for JSON; times in `timeline` are seconds. With `step`, what follows the pipeline too."""
    events: list[Event] = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "pipeline"}}]
    for stage, spans in enumerate(timeline.stages):
        name = {"name": f"stage {stage}: {_ranks(grid, stage)}"}
        events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": stage, "args": name})
        events.append({"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": stage, "args": {"sort_index": stage}})
        events.extend(_slice(stage, len(timeline.stages), span) for span in spans)
        events.extend(_held(stage, spans))
        if step is not None:
            events.extend(_after(stage, timeline.makespan, step))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _slice(stage: int, p: int, span: Span) -> Event:
    action = span.action
    where = {"microbatch": action.microbatch, "chunk": action.chunk, "virtual stage": action.chunk * p + stage}
    return _timed(stage, str(action), KIND_NAMES[action.kind], span.start, span.end - span.start) | {"args": where}


def _after(stage: int, begin: float, step: StepTime) -> Iterator[Event]:
    """What a step does when its last backward has ended."""
    for name, seconds in (("gradients and weights", step.dp), ("update", step.optimizer)):
        if seconds > 0:
            yield _timed(stage, name, name, begin, seconds)
        begin += seconds


def _timed(stage: int, name: str, category: str, start: float, seconds: float) -> Event:
    """A slice; the format counts microseconds."""
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": stage, "ts": start * 1e6, "dur": seconds * 1e6}


def _held(stage: int, spans: tuple[Span, ...]) -> Iterator[Event]:
    """The counter of chunk activations, from each forward's start to the end of its backward."""
    changes = [(span.start, 1) for span in spans if span.action.kind is Kind.F]
    changes += [(span.end, -1) for span in spans if _frees(span.action)]
    held = 0
    for time, change in sorted(changes):
        held += change
        counter = f"held by stage {stage}"
        yield {"name": counter, "ph": "C", "pid": 0, "tid": stage, "ts": time * 1e6, "args": {"activations": held}}


def _frees(action: Action) -> bool:
    return action.kind in (Kind.B, Kind.W)


def _ranks(grid: RankGrid, stage: int) -> str:
    """The ranks of a stage, runs of neighbours as first to last."""
    members = grid.members(grid.rank(pp=stage), "tp", "cp", "dp")
    starts = [rank for rank in members if rank - 1 not in members]
    ends = [rank for rank in members if rank + 1 not in members]
    runs = [str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends)]
    more = f", ... ({len(members)} ranks)" if len(runs) > _RUNS else ""
    return f"{'rank' if len(members) == 1 else 'ranks'} {', '.join(runs[:_RUNS])}{more}"


_RUNS = 4
"""Runs of ranks that a name spells out."""
