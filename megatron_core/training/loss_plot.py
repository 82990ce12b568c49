# SPDX-License-Identifier: Apache-2.0
"""A loss curve as text, for terminals and logs.

Each character column shows the mean of the points that fall into it; columns without points are bridged by straight
lines, so that few points still read as a curve.
"""

import itertools
import math
from collections.abc import Sequence

MARK = "•"


def loss_plot(points: Sequence[tuple[int, float]], width: int = 72, height: int = 14) -> str:
    """Lines of text with a vertical scale, the curve and the range of steps.

    points: (step, loss) in any order, non-finite ones are left out; width, height: characters of the plotting area.
    """
    finite = sorted((step, loss) for step, loss in points if math.isfinite(loss))
    if not finite:
        return "no finite losses to plot"
    first, last = finite[0][0], finite[-1][0]
    columns = _columns(finite, width)
    low, high = min(columns), max(columns)
    rows = [[" "] * len(columns) for _ in range(height)]
    for x, loss in enumerate(columns):
        share = (loss - low) / (high - low) if high > low else 0.0
        rows[round((1.0 - share) * (height - 1))][x] = MARK
    values = [high - (high - low) * y / max(height - 1, 1) for y in range(height)]
    labels = [f"{value:.5g}" if y % 4 == 0 or y == height - 1 else "" for y, value in enumerate(values)]
    margin = max(map(len, labels))
    lines = [f"{label:>{margin}} {'┤' if label else '│'}{''.join(row)}".rstrip() for label, row in zip(labels, rows)]
    lines.append(f"{'':{margin}} └" + "─" * len(columns))
    left, right = f"step {first}", str(last)
    lines.append(f"{'':{margin}}  {left}{right:>{max(len(columns) - len(left), len(right) + 1)}}")
    return "\n".join(lines)


def _columns(points: Sequence[tuple[int, float]], width: int) -> list[float]:
    """Mean loss of each column, empty columns interpolated between their neighbours."""
    first, last = points[0][0], points[-1][0]
    span = last - first
    width = max(min(width, span + 1), 1)
    sums, counts = [0.0] * width, [0] * width
    for step, loss in points:
        x = (step - first) * (width - 1) // span if span else 0
        sums[x] += loss
        counts[x] += 1
    known = [(x, sums[x] / counts[x]) for x in range(width) if counts[x]]
    columns = [known[0][1]]
    for (x0, y0), (x1, y1) in itertools.pairwise(known):
        columns.extend(y0 + (y1 - y0) * (x - x0) / (x1 - x0) for x in range(x0 + 1, x1 + 1))
    return columns
