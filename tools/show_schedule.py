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
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.check import Report, check
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.draw import Row, cell_width, rows, wrapped
from megatron_core.pipeline.schedules import build
from megatron_core.pipeline.timeline import Timeline, simulate_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
NAMES = {Kind.F: "forward", Kind.B: "backward", Kind.I: "input gradient", Kind.W: "weight gradient"}
# From light to dark: chunk 0, 1, ... of a stage. Text on them is dark.
SHADES = {
    Kind.F: ("#a9cdf5", "#7fb2ec", "#5a98de", "#3f82cf"),
    Kind.B: ("#a6dcb4", "#7fca94", "#5cb677", "#419f5e"),
    Kind.I: ("#9fdcd6", "#73c9c1", "#4fb3aa", "#379c93"),
    Kind.W: ("#fbd08f", "#f5bb62", "#eba63c", "#da9224"),
}
INK, GREY, BUBBLE = "#1c2733", "#6a7683", "#eef1f4"
LEFT, RIGHT, TOP, BOTTOM = 0.85, 0.95, 0.85, 0.6  # margins of the picture, in inches


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
            save(drawing, args.output)
            print(f"wrote {args.output}")
    except (ConfigError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(args: Arguments) -> Drawing:
    """Builds, proves and times the schedule. Raises ConfigError when it is impossible."""
    if args.output is not None and args.output.suffix not in FORMATS:
        raise ConfigError(f"--output {args.output} must end in {' or '.join(FORMATS)}")
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
    console.print("   ".join(f"{kind.value} {NAMES[kind]}" for kind in Kind if kind in used) + "   · idle")
    console.print(drawing.summary)
    what = "chunk activations" if drawing.v > 1 else "activations"
    console.print(f"peak live {what}, by stage: {' '.join(map(str, drawing.report.peak_live))}")


def _coloured(row: Row, v: int) -> Text:
    text = Text()
    for action, group in groupby(zip(row.text, row.actions), key=lambda pair: pair[1]):
        style = "bright_black" if action is None else f"{INK} on {_shade(action, v)}"
        text.append("".join(character for character, _ in group), style)
    return text


def _shade(action: Action, v: int) -> str:
    shades = SHADES[action.kind]
    return shades[min(action.chunk, len(shades) - 1) if v > 1 else 1]


def save(drawing: Drawing, path: Path) -> None:
    """Draws the grid to a PNG or SVG file. Raises ConfigError without matplotlib."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("--output needs matplotlib, which is not installed: pip install matplotlib") from error
    p, makespan = len(drawing.timeline.stages), drawing.timeline.makespan
    shortest = min(span.end - span.start for spans in drawing.timeline.stages for span in spans)
    width = min(max(6.5, 0.25 * makespan / shortest), 40.0)  # of the grid, in inches
    height = 0.42 * p
    page = (LEFT + width + RIGHT, BOTTOM + height + TOP)
    with matplotlib.rc_context({"svg.hashsalt": "schedule"}):  # the same picture gives the same file
        figure = Figure(figsize=page)
        box = (LEFT / page[0], BOTTOM / page[1], width / page[0], height / page[1])
        axes = figure.add_axes(box, xlim=(0, makespan), ylim=(p, 0))
        axes.axis("off")
        _draw_stages(axes, drawing, inches_a_unit=width / makespan)
        _draw_words(figure, axes, drawing)
        _draw_legend(figure, drawing)
        figure.savefig(path, dpi=200, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_stages(axes: Axes, drawing: Drawing, inches_a_unit: float) -> None:
    """A grey bar a stage, which shows where there is bubble, and a box with the microbatch's number for each action."""
    for stage, spans in enumerate(drawing.timeline.stages):
        axes.barh(stage + 0.5, drawing.timeline.makespan, height=0.86, color=BUBBLE, linewidth=0)
        for span in spans:
            length = span.end - span.start
            colour = _shade(span.action, drawing.v)
            axes.barh(stage + 0.5, length, left=span.start, height=0.86, color=colour, edgecolor="white", linewidth=1.2)
            number = str(span.action.microbatch)
            points = min(9.5, 72 * length * inches_a_unit / (0.7 * len(number) + 0.3))
            place = (span.start + length / 2, stage + 0.52)
            axes.text(*place, number, color=INK, fontsize=points, ha="center", va="center")


def _draw_words(figure: Figure, axes: Axes, drawing: Drawing) -> None:
    """Title and summary above, stages to the left, peaks to the right."""
    width, height = figure.get_size_inches()
    right = 1 - RIGHT / 2 / width
    figure.text(LEFT / width, 1 - 0.42 / height, drawing.title, color=INK, fontsize=12.5, weight="bold")
    figure.text(LEFT / width, 1 - 0.68 / height, drawing.summary, color=GREY, fontsize=10)
    figure.text(right, 1 - 0.68 / height, "peak live", color=GREY, fontsize=10, ha="center")
    for stage, peak in enumerate(drawing.report.peak_live):
        y = axes.transData.transform((0, stage + 0.52))[1] / figure.bbox.height
        figure.text((LEFT - 0.12) / width, y, f"stage {stage}", color=INK, fontsize=10, ha="right", va="center")
        figure.text(right, y, str(peak), color=INK, fontsize=10, ha="center", va="center")


def _draw_legend(figure: Figure, drawing: Drawing) -> None:
    """Below the grid: for each kind that occurs its swatches, one a chunk, and its name."""
    from matplotlib.patches import Rectangle

    used = {span.action.kind for spans in drawing.timeline.stages for span in spans}
    chunks = f", chunk 0 to {drawing.v - 1}" if drawing.v > 1 else ""
    entries = [
        ([_shade(Action(k, 0, c), drawing.v) for c in range(drawing.v)], NAMES[k] + chunks) for k in Kind if k in used
    ]
    width, height = figure.get_size_inches()
    x = LEFT  # inches from the left
    for colours, name in [*entries, ([BUBBLE], "bubble")]:
        for colour in colours:
            corner = (x / width, 0.24 / height)
            figure.add_artist(Rectangle(corner, 0.2 / width, 0.2 / height, facecolor=colour, edgecolor="white"))
            x += 0.2
        figure.text((x + 0.08) / width, 0.34 / height, name, color=GREY, fontsize=9.5, va="center")
        x += 0.35 + 0.078 * len(name)


if __name__ == "__main__":
    sys.exit(main())
