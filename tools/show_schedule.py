#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws a pipeline schedule, in the terminal and as PNG or SVG, with its bubble and its peak live activations.

    python tools/show_schedule.py --pipeline-size 4 --virtual-size 2 --microbatches 8 --output interleaved.png

It shows the very actions that training would run, with durations as given and transfers that take no time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import KIND_NAMES, Kind
from megatron_core.pipeline.check import Report, check
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.draw import Row, cell_width, rows, wrapped
from megatron_core.pipeline.picture import INK, Panel, check_format, save, shade
from megatron_core.pipeline.schedules import build
from megatron_core.pipeline.timeline import Timeline, simulate_unit


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Draw a pipeline schedule as a grid: one line a stage, time to the right."""

    pipeline_size: int
    """Pipeline stages p."""
    microbatches: int
    """Microbatches m of one step."""
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero-bubble"] | None = None
    """As --pipeline-schedule in training; by default 1f1b, or interleaved with several virtual stages a rank."""
    virtual_size: int = 1
    """Virtual stages (chunks of layers) v that each rank holds."""
    forward_time: float = 1.0
    """Time of one forward through one chunk, in any unit."""
    backward_time: float = 2.0
    """Time of one backward through one chunk; input and weight gradient take half of it each."""
    output: Path | None = None
    """Also draw a picture: a path that ends in .png or .svg."""


@dataclass(frozen=True)
class Drawing:
    """All that is shown."""

    title: str
    timeline: Timeline
    report: Report
    v: int

    @property
    def summary(self) -> str:
        """The bubble, in words."""
        return f"bubble {self.timeline.bubble:.1%} of the busy time   ·   makespan {self.timeline.makespan:g}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 when the arguments ask for something impossible."""
    args = tyro.cli(Arguments, args=arguments)
    try:
        drawing = prepare(args)
        show(drawing, Console(highlight=False))
        if args.output is not None:
            panel = Panel(drawing.title, drawing.summary, drawing.timeline, drawing.v, drawing.report.peak_live)
            save([panel], args.output)
            print(f"wrote {args.output}")
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(args: Arguments) -> Drawing:
    """Builds, proves and times the schedule. Raises ConfigError when it is impossible."""
    if args.output is not None:
        check_format(args.output)
    if not (args.forward_time > 0 and args.backward_time > 0):
        raise ConfigError(f"times must be above 0, not {args.forward_time:g} and {args.backward_time:g}")
    p, v, m = args.pipeline_size, args.virtual_size, args.microbatches
    name = args.schedule or ("interleaved" if v > 1 else "1f1b")
    schedule = build(name, p, v, m)
    half = args.backward_time / 2
    timeline = simulate_unit(
        schedule, v, forward=args.forward_time, backward=args.backward_time, input_grad=half, weight_grad=half
    )
    stages = f"{_count(p, 'stage')}{f' of {v} chunks' if v > 1 else ''}"
    title = f"{name}   ·   {stages}   ·   {_count(m, 'microbatch', 'microbatches')}"
    return Drawing(title, timeline, check(communicate(schedule, v), p, v, m), v)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def show(drawing: Drawing, console: Console) -> None:
    """Prints the grid, in blocks as wide as the terminal; the letters say what the colours say."""
    margin = len(str(len(drawing.report.peak_live) - 1)) + 2
    console.print(Text(drawing.title, style="bold"))
    for block in wrapped(
        rows(drawing.timeline, drawing.v), console.width - margin, cell_width(drawing.timeline, drawing.v)
    ):
        console.print()
        for stage, row in enumerate(block):
            console.print(
                Text(f"{stage:>{margin - 2}}  ") + _coloured(row, drawing.v), no_wrap=True, crop=False, soft_wrap=True
            )
    console.print()
    used = {span.action.kind for spans in drawing.timeline.stages for span in spans}
    console.print("   ".join(f"{kind.value} {KIND_NAMES[kind]}" for kind in Kind if kind in used) + "   · idle")
    console.print(drawing.summary)
    what = "chunk activations" if drawing.v > 1 else "activations"
    console.print(f"peak live {what}, by stage: {' '.join(map(str, drawing.report.peak_live))}")


def _coloured(row: Row, v: int) -> Text:
    text = Text()
    for action, group in groupby(zip(row.text, row.actions), key=lambda pair: pair[1]):
        style = "bright_black" if action is None else f"{INK} on {shade(action, v)}"
        text.append("".join(character for character, _ in group), style)
    return text


if __name__ == "__main__":
    sys.exit(main())
