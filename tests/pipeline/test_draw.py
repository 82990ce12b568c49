# SPDX-License-Identifier: Apache-2.0
"""The grid over time, to the character."""

from megatron_core.pipeline.draw import cell_width, draw, rows, wrapped
from megatron_core.pipeline.schedules import interleaved, one_f_one_b
from megatron_core.pipeline.timeline import simulate_unit


def test_two_stages():
    assert draw(simulate_unit(one_f_one_b(2, 2), 1), 1).splitlines() == [
        "0  F0 F1 ······B0─── ···B1─── ",
        "1  ···F0 B0─── F1 B1─── ······",
    ]


def test_chunks_are_named_where_there_are_several():
    assert draw(simulate_unit(interleaved(2, 2, 1), 2, backward=1), 2).splitlines() == [
        "0  F0.0 ·····F0.1 ··········B0.1 ·····B0.0 ",
        "1  ·····F0.0 ·····F0.1 B0.1 ·····B0.0 ·····",
    ]


def test_uneven_durations_fill_the_same_width_on_all_stages():
    grid = rows(simulate_unit(one_f_one_b(4, 12), 1, forward=0.7, backward=1.9), 1)
    assert len({len(row.text) for row in grid}) == 1
    for row in grid:
        assert len(row.text) == len(row.actions)
        assert all((action is None) == (character == "·") for character, action in zip(row.text, row.actions))
        assert all(f"{kind}{i} " in row.text or f"{kind}{i}─" in row.text for kind in "FB" for i in range(12))


def test_blocks_hold_whole_cells_and_together_the_whole_grid():
    timeline = simulate_unit(one_f_one_b(2, 5), 1)
    grid, cell = rows(timeline, 1), cell_width(timeline, 1)
    blocks = wrapped(grid, 20, cell)
    assert [len(block[0].text) for block in blocks[:-1]] == [18] * (len(blocks) - 1)
    for stage, row in enumerate(grid):
        assert "".join(block[stage].text for block in blocks) == row.text
        assert sum((block[stage].actions for block in blocks), ()) == row.actions
    assert {len(block[0].text) for block in wrapped(grid, 1, cell)} == {3}
