# SPDX-License-Identifier: Apache-2.0
"""A timeline as text, one line a stage, each action as wide as it is long; dots are bubble.

0  F0 F1 ······B0─── ···B1───
1  ···F0 B0─── F1 B1─── ······
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron_core.pipeline.action import Action
from megatron_core.pipeline.timeline import Timeline

IDLE, FILL = "·", "─"


@dataclass(frozen=True)
class Row:
    """One stage: its characters, and for each the action that it belongs to (None where the stage idles)."""

    text: str
    actions: tuple[Action | None, ...]

    def cut(self, start: int, stop: int) -> Row:
        """The columns from `start` to before `stop`."""
        return Row(self.text[start:stop], self.actions[start:stop])


def label(action: Action, v: int) -> str:
    """`F2`, or `F2.1` where a stage has several chunks."""
    return str(action) if v > 1 else f"{action.kind.value}{action.microbatch}"


def cell_width(timeline: Timeline, v: int) -> int:
    """Columns of the shortest action: the longest label and a blank."""
    return 1 + max(len(label(span.action, v)) for spans in timeline.stages for span in spans)


def rows(timeline: Timeline, v: int) -> tuple[Row, ...]:
    """The grid, equally long for all stages."""
    scale = cell_width(timeline, v) / min(span.end - span.start for spans in timeline.stages for span in spans)
    length = round(timeline.makespan * scale)
    grid = []
    for stage in timeline.stages:
        text = [IDLE] * length
        actions: list[Action | None] = [None] * length
        for span in stage:
            start, stop = round(span.start * scale), round(span.end * scale)
            text[start:stop] = label(span.action, v).ljust(stop - start - 1, FILL).ljust(stop - start)[: stop - start]
            actions[start:stop] = [span.action] * (stop - start)
        grid.append(Row("".join(text), tuple(actions)))
    return tuple(grid)


def wrapped(grid: tuple[Row, ...], width: int, cell: int) -> tuple[tuple[Row, ...], ...]:
    """The grid in blocks to be shown one below the other, each of as many whole cells as go into `width`, or one."""
    columns = max(width // cell, 1) * cell
    return tuple(
        tuple(row.cut(start, start + columns) for row in grid) for start in range(0, len(grid[0].text), columns)
    )


def draw(timeline: Timeline, v: int) -> str:
    """The whole grid, unwrapped, with the stage number before each line."""
    digits = len(str(len(timeline.stages) - 1))
    return "\n".join(f"{stage:>{digits}}  {row.text}" for stage, row in enumerate(rows(timeline, v)))
