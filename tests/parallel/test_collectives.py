# SPDX-License-Identifier: Apache-2.0
"""Every collective on 2 to 4 ranks, and as the identity alone."""

import warnings

import pytest
import torch

from megatron_core.parallel import collectives as c
from megatron_core.parallel.context import ParallelContext, single_process_context
from tests.rank_pool import ranks


def _rows(ctx: ParallelContext, n: int) -> torch.Tensor:
    """[n, 2], different on every rank."""
    return torch.arange(2.0 * n).view(n, 2) + 100 * ctx.rank


def test_alone_everything_is_the_identity() -> None:
    group = single_process_context().tp
    x = torch.randn(4, 2)
    for collective in (c.all_reduce, c.all_gather, c.reduce_scatter, c.broadcast):
        assert collective(x, group) is x
    for started in (c.all_gather_async, c.reduce_scatter_async, c.all_to_all_async):
        out, work = started(x, group)
        work.wait()
        assert out is x and work.is_completed()
    c.all_reduce_async(x, group).wait()
    c.barrier(group)


@ranks(2, 3)
def test_all_reduce(ctx: ParallelContext) -> None:
    x = _rows(ctx, 3)
    assert c.all_reduce(x, ctx.world) is x
    n = ctx.world.size
    assert torch.equal(x, n * torch.arange(6.0).view(3, 2) + 100 * sum(range(n)))
    largest = torch.tensor([float(ctx.rank)])
    work = c.all_reduce_async(largest, ctx.world, c.MAX)
    work.wait()
    assert largest.item() == n - 1


@ranks(2, 3)
def test_all_gather_concatenates_in_coordinate_order(ctx: ParallelContext) -> None:
    expected = torch.cat([torch.arange(4.0).view(2, 2) + 100 * rank for rank in ctx.world.ranks])
    assert torch.equal(c.all_gather(_rows(ctx, 2), ctx.world), expected)
    transposed = _rows(ctx, 2).t().contiguous().t()
    assert torch.equal(c.all_gather(transposed, ctx.world), expected)


@ranks(2, 3)
def test_reduce_scatter_is_a_slice_of_the_sum(ctx: ParallelContext) -> None:
    n = ctx.world.size
    x = _rows(ctx, 2 * n)
    total = c.all_reduce(x.clone(), ctx.world)
    assert torch.equal(c.reduce_scatter(x, ctx.world), total[2 * ctx.rank : 2 * ctx.rank + 2])
    with pytest.raises(AssertionError, match="rows cannot be scattered"):
        c.reduce_scatter(torch.zeros(n + 1), ctx.world)


@ranks(2, 3)
def test_all_to_all_transposes_blocks_of_rows(ctx: ParallelContext) -> None:
    n, me = ctx.world.size, ctx.world.coordinate
    out, work = c.all_to_all_async(_rows(ctx, 2 * n), ctx.world)
    work.wait()
    mine = torch.arange(4.0 * n).view(2 * n, 2)[2 * me : 2 * me + 2]
    assert torch.equal(out, torch.cat([mine + 100 * rank for rank in ctx.world.ranks]))
    with pytest.raises(AssertionError, match="rows cannot be dealt"):
        c.all_to_all_async(torch.zeros(n + 1), ctx.world)


@ranks(4, tp=2, pp=2)
def test_broadcast_speaks_of_coordinates_not_ranks(ctx: ParallelContext) -> None:
    x = torch.tensor([float(ctx.rank)])
    c.broadcast(x, ctx.tp, source=1)
    assert x.item() == ctx.tp.ranks[1]


@ranks(3)
def test_exchange_in_one_batch(ctx: ParallelContext) -> None:
    n, me = ctx.world.size, ctx.world.coordinate
    right, left = (me + 1) % n, (me - 1) % n
    received = torch.empty(2)
    works = c.exchange_async(
        [(True, right, torch.full((2,), float(me))), (False, left, received)],
        ctx.world,
    )
    assert len(works) == 2
    for work in works:
        work.wait()
    assert received.tolist() == [left, left]


@ranks(2)
def test_no_deprecation_warnings(ctx: ParallelContext) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c.all_gather(torch.ones(2), ctx.world)
        c.reduce_scatter(torch.ones(2), ctx.world)
        c.all_to_all_async(torch.ones(2), ctx.world)[1].wait()
        c.barrier(ctx.world)


@ranks(2, 3)
def test_in_place_each_member_has_a_part(ctx: ParallelContext) -> None:
    n, me = ctx.world.size, ctx.world.coordinate
    flat = _rows(ctx, n).flatten()
    expected = torch.cat([(torch.arange(2.0 * n) + 100 * r)[2 * r : 2 * r + 2] for r in ctx.world.ranks])
    work = c.all_gather_in_place(flat, ctx.world)
    work.wait()
    assert torch.equal(flat, expected) and work.is_completed()
    flat = _rows(ctx, n).flatten()
    c.reduce_scatter_in_place(flat, ctx.world).wait()
    total = n * torch.arange(2.0 * n) + 100 * sum(range(n))
    assert torch.equal(flat.view(n, 2)[me], total.view(n, 2)[me])
