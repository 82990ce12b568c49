# SPDX-License-Identifier: Apache-2.0
"""Ranks and coordinates, up to sizes that no test could start."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.parallel.rank_grid import DEFAULT_ORDER, TP_PP_DP_ORDER, RankGrid

SIZES = st.integers(1, 7)
GRIDS = st.builds(
    RankGrid,
    tp=SIZES,
    cp=st.integers(1, 3),
    dp=SIZES,
    pp=SIZES,
    order=st.sampled_from([DEFAULT_ORDER, TP_PP_DP_ORDER]),
)
AXES = st.lists(st.sampled_from(DEFAULT_ORDER), unique=True, max_size=4)


def test_tp_neighbours_share_a_node() -> None:
    grid = RankGrid(tp=2, dp=2, pp=2)
    assert grid.groups("tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert grid.groups("dp") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert grid.groups("pp") == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_order_with_pipeline_inside_data_parallelism() -> None:
    grid = RankGrid(tp=2, dp=2, pp=2, order=TP_PP_DP_ORDER)
    assert grid.groups("pp") == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert grid.groups("dp") == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_16384_ranks() -> None:
    grid = RankGrid(tp=8, dp=128, pp=16)
    assert grid.world_size == 16_384
    assert grid.members(16_383, "tp") == tuple(range(16_376, 16_384))
    assert grid.members(0, "pp") == tuple(range(0, 16_384, 1024))
    assert grid.members(5, "dp") == tuple(range(5, 1024, 8))
    assert len(grid.groups("dp")) == 128


@settings(deadline=None, max_examples=40)
@given(grid=GRIDS, data=st.data())
def test_coordinates_and_rank_are_inverse(grid: RankGrid, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid.world_size - 1))
    assert grid.rank(**{axis: grid.coordinate(rank, axis) for axis in grid.order}) == rank


@settings(deadline=None, max_examples=40)
@given(grid=GRIDS, axes=AXES, data=st.data())
def test_members_agree_on_all_other_axes(grid: RankGrid, axes: list, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid.world_size - 1))
    members = grid.members(rank, *axes)
    size = 1
    for axis in axes:
        size *= grid.size(axis)
    assert len(set(members)) == size and rank in members and list(members) == sorted(members)
    others = [axis for axis in DEFAULT_ORDER if axis not in axes]
    for member in members:
        assert all(grid.coordinate(member, axis) == grid.coordinate(rank, axis) for axis in others)
        assert grid.members(member, *axes) == members


@settings(deadline=None, max_examples=30)
@given(grid=GRIDS, axes=AXES)
def test_groups_partition_the_world(grid: RankGrid, axes: list) -> None:
    ranks = [rank for group in grid.groups(*axes) for rank in group]
    assert sorted(ranks) == list(range(grid.world_size))


def test_a_rank_outside_the_world_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="rank 4 is outside a world of 4"):
        RankGrid(tp=2, dp=2).coordinate(4, "tp")


@pytest.mark.parametrize("wrong", [{"tp": 0}, {"order": ("tp", "dp", "pp")}])
def test_impossible_grids_are_bugs(wrong: dict) -> None:
    with pytest.raises(AssertionError):
        RankGrid(**wrong)
