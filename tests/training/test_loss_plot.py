# SPDX-License-Identifier: Apache-2.0
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.training.loss_plot import MARK, loss_plot


def marks(plot: str) -> list[tuple[int, int]]:
    """(column, row) of every mark, sorted by column."""
    return sorted((x, y) for y, line in enumerate(plot.splitlines()) for x, c in enumerate(line) if c == MARK)


def test_a_falling_loss_falls() -> None:
    plot = loss_plot([(step, 5.0 - 0.04 * step) for step in range(1, 101)], width=40, height=10)
    lines = plot.splitlines()
    assert len(lines) == 12
    assert lines[0].split() == ["4.92", "┤" + MARK * 2]
    assert lines[9].split()[0] == "1" and lines[9].endswith(MARK)
    assert lines[-1].split() == ["step", "1", "100"]
    rows = [y for _, y in marks(plot)]
    assert len(rows) == 40
    assert rows == sorted(rows)


def test_few_points_are_joined() -> None:
    assert len(marks(loss_plot([(0, 4.0), (50, 2.0), (100, 3.0)], width=51, height=9))) == 51


def test_points_without_a_number_are_left_out() -> None:
    assert loss_plot([(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)]) == loss_plot([(1, 2.0), (4, 1.0)])
    assert loss_plot([(1, math.nan)]) == loss_plot([]) == "no finite losses to plot"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(-1e3, 1e3)), min_size=1, max_size=50),
    st.integers(1, 80),
    st.integers(1, 20),
)
def test_keeps_its_size_whatever_it_is_given(points: list[tuple[int, float]], width: int, height: int) -> None:
    *area, axis, steps = loss_plot(points, width, height).splitlines()
    assert len(area) == height
    assert len({max(line.find("┤"), line.find("│")) for line in area}) == 1, "the scale is one straight line"
    assert 1 <= axis.count("─") <= width
    assert max(map(len, area)) <= len(axis)
    assert steps.split()[1:] == [str(min(points)[0]), str(max(points)[0])]
