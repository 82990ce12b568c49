# SPDX-License-Identifier: Apache-2.0
"""Which groups a rank creates: its own alone, also at the size of MT-NLG's full run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context, group_members
from megatron_core.parallel.rank_grid import RankGrid
from tests.rank_pool import ranks

MT_NLG = """
import sys, time
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import RankGrid

grid = RankGrid(tp=8, pp=35, dp=8)
dist.init_process_group("fake", store=FakeStore(), rank=777, world_size=grid.world_size)
made = []
new_group = dist.new_group
dist.new_group = lambda ranks, **options: made.append(tuple(ranks)) or new_group(ranks, **options)
start = time.perf_counter()
ctx = create_context(grid, 777, torch.device("cpu"))
seconds = time.perf_counter() - start
assert len(made) == 3 and all(777 in ranks for ranks in made), made
assert (ctx.tp.size, ctx.pp.size, ctx.dp.size, ctx.world.size) == (8, 35, 8, 2240), ctx
assert seconds < 5.0, f"{seconds:.1f} s to create the groups of one rank"
"""


def test_2240_ranks_start_with_three_groups_each() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", MT_NLG], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_names_and_members_in_order() -> None:
    members = dict(group_members(RankGrid(tp=4, dp=2, pp=2), rank=6, kv_replicas=2))
    assert list(members) == ["tp", "kv", "dp", "pp", "tied", "world"]
    assert members["tp"] == (4, 5, 6, 7) and members["kv"] == (6, 7)
    assert members["dp"] == (2, 6) and members["pp"] == (6, 14)
    assert members["tied"] == (2, 6, 10, 14)


def test_middle_stages_share_no_tied_table() -> None:
    names = [[name for name, _ in group_members(RankGrid(pp=3), rank)] for rank in range(3)]
    assert ["tied" in found for found in names] == [True, False, True]


def test_on_one_stage_a_tied_table_is_shared_by_dp_alone() -> None:
    assert dict(group_members(RankGrid(tp=2, dp=2), 1))["tied"] == (1, 3)


def test_a_world_of_one_needs_no_process_group() -> None:
    ctx = create_context(RankGrid(), 0, torch.device("cpu"))
    assert ctx.groups == {} and ctx.world.size == 1


@ranks({"tp": 2, "pp": 2, "dp": 2}, {"tp": 4, "pp": 2, "kv_replicas": 2})
def test_each_group_sums_over_its_own_members(ctx: ParallelContext) -> None:
    for name, group in ctx.groups.items():
        total = torch.tensor([float(ctx.rank)])
        if group.handle is not None:
            dist.all_reduce(total, group=group.handle)
        assert total.item() == sum(group.ranks), f"{name}: {group}"
        assert group.ranks[group.coordinate] == ctx.rank


@ranks(4, tp=4)
def test_equal_members_share_one_communicator(ctx: ParallelContext) -> None:
    assert ctx.tp.handle is ctx.world.handle


@ranks(2)
def test_a_grid_of_another_size_is_a_bug(ctx: ParallelContext) -> None:
    with pytest.raises(AssertionError, match="2 ranks run"):
        create_context(RankGrid(tp=4), ctx.rank, ctx.device)
