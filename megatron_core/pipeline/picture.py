# SPDX-License-Identifier: Apache-2.0
"""Timelines as PNG or SVG: one line a stage, a box for each action; several panels share one scale of time.

Needs matplotlib, which is an extra: without it a ConfigError says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import KIND_NAMES, Action, Kind
from megatron_core.pipeline.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
# From light to dark: chunk 0, 1, ... of a stage. Text on them is dark.
SHADES = {
    Kind.F: ("#a9cdf5", "#7fb2ec", "#5a98de", "#3f82cf"),
    Kind.B: ("#a6dcb4", "#7fca94", "#5cb677", "#419f5e"),
    Kind.I: ("#9fdcd6", "#73c9c1", "#4fb3aa", "#379c93"),
    Kind.W: ("#fbd08f", "#f5bb62", "#eba63c", "#da9224"),
}
INK, GREY, BUBBLE = "#1c2733", "#6a7683", "#eef1f4"
LEFT, RIGHT, TOP, BOTTOM = 0.85, 0.95, 0.85, 0.6
"""Margins in inches: left and right of the page, above each panel, below the last one."""
LINE = 0.42
"""Height of a stage, in inches."""
WIDEST = 40.0
"""Inches of the widest grid."""
_LEAST_POINTS = 3.0
"""Numbers of microbatches that would be smaller are left out."""


@dataclass(frozen=True)
class Panel:
    """One timeline of stages that hold v chunks each, with what is written around it."""

    title: str
    summary: str
    timeline: Timeline
    v: int
    peak_live: tuple[int, ...] = ()
    """Activations that each stage holds at most, if they are to be shown."""


def shade(action: Action, v: int) -> str:
    """The colour of an action."""
    shades = SHADES[action.kind]
    return shades[min(action.chunk, len(shades) - 1) if v > 1 else 1]


def check_format(path: Path) -> None:
    """Raises ConfigError for the path of a picture that cannot be drawn."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"a picture's path must end in {' or '.join(FORMATS)}, unlike {path}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{path} needs matplotlib, which is not installed: pip install matplotlib") from error


def save(panels: Sequence[Panel], path: Path) -> None:
    """Draw panels one above the other to a PNG or SVG file. Raises ConfigError as `check_format` does."""
    check_format(path)
    import matplotlib
    from matplotlib.figure import Figure

    makespan = max(panel.timeline.makespan for panel in panels)
    shortest = min(span.end - span.start for panel in panels for spans in panel.timeline.stages for span in spans)
    width = min(max(6.5, 0.25 * makespan / shortest), WIDEST)  # of the grid, in inches
    heights = [LINE * len(panel.timeline.stages) for panel in panels]
    page = (LEFT + width + RIGHT, BOTTOM + sum(heights) + TOP * len(panels))
    with matplotlib.rc_context({"svg.hashsalt": "schedule"}):  # the same picture gives the same file
        figure = Figure(figsize=page)
        top = page[1]
        for panel, height in zip(panels, heights):
            top -= TOP + height
            box = (LEFT / page[0], top / page[1], width / page[0], height / page[1])
            axes = figure.add_axes(box, xlim=(0, makespan), ylim=(len(panel.timeline.stages), 0))
            axes.axis("off")
            _draw_stages(axes, panel, inches_a_unit=width / makespan)
            _draw_words(figure, axes, panel, top + height)
        _draw_legend(figure, panels)
        figure.savefig(path, dpi=200, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_stages(axes: Axes, panel: Panel, inches_a_unit: float) -> None:
    """A grey bar a stage, which shows where there is bubble, and a box with the microbatch's number for each action."""
    for stage, spans in enumerate(panel.timeline.stages):
        axes.barh(stage + 0.5, panel.timeline.makespan, height=0.86, color=BUBBLE, linewidth=0)
        bars = [(span.start, span.end - span.start) for span in spans]
        colours = [shade(span.action, panel.v) for span in spans]
        edge = min(1.2, 9 * inches_a_unit * min(length for _, length in bars))  # an eighth of the shortest, in points
        axes.broken_barh(bars, (stage + 0.07, 0.86), facecolors=colours, edgecolor="white", linewidth=edge)
        for span in spans:
            length = span.end - span.start
            number = str(span.action.microbatch)
            points = min(9.5, 72 * length * inches_a_unit / (0.7 * len(number) + 0.3))
            if points >= _LEAST_POINTS:
                place = (span.start + length / 2, stage + 0.52)
                axes.text(*place, number, color=INK, fontsize=points, ha="center", va="center")


def _draw_words(figure: Figure, axes: Axes, panel: Panel, top: float) -> None:
    """Title and summary above `top` (inches), stages to the left, peaks to the right."""
    width, height = figure.get_size_inches()
    right = 1 - RIGHT / 2 / width
    figure.text(LEFT / width, (top + TOP - 0.42) / height, panel.title, color=INK, fontsize=12.5, weight="bold")
    figure.text(LEFT / width, (top + TOP - 0.68) / height, panel.summary, color=GREY, fontsize=10)
    if panel.peak_live:
        figure.text(right, (top + TOP - 0.68) / height, "peak live", color=GREY, fontsize=10, ha="center")
    for stage in range(len(panel.timeline.stages)):
        y = axes.transData.transform((0, stage + 0.52))[1] / figure.bbox.height
        figure.text((LEFT - 0.12) / width, y, f"stage {stage}", color=INK, fontsize=10, ha="right", va="center")
        if panel.peak_live:
            figure.text(right, y, str(panel.peak_live[stage]), color=INK, fontsize=10, ha="center", va="center")


def _draw_legend(figure: Figure, panels: Sequence[Panel]) -> None:
    """Below the grids: for each kind that occurs its swatches, one a chunk, and its name."""
    from matplotlib.patches import Rectangle

    used = {span.action.kind for panel in panels for spans in panel.timeline.stages for span in spans}
    v = max(panel.v for panel in panels)
    chunks = f", chunk 0 to {v - 1}" if v > 1 else ""
    entries = [([shade(Action(k, 0, c), v) for c in range(v)], KIND_NAMES[k] + chunks) for k in Kind if k in used]
    width, height = figure.get_size_inches()
    x = LEFT  # inches from the left
    for colours, name in [*entries, ([BUBBLE], "bubble")]:
        for colour in colours:
            corner = (x / width, 0.24 / height)
            figure.add_artist(Rectangle(corner, 0.2 / width, 0.2 / height, facecolor=colour, edgecolor="white"))
            x += 0.2
        figure.text((x + 0.08) / width, 0.34 / height, name, color=GREY, fontsize=9.5, va="center")
        x += 0.35 + 0.078 * len(name)
