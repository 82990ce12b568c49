# SPDX-License-Identifier: Apache-2.0
"""The two-phase average against its definition on whole tensors, and what it must not depend on."""

import torch
import torch.distributed as dist

from megatron_core.data_parallel.buckets import Bucket, BucketClass, Slot
from megatron_core.data_parallel.compressed_exchange import CompressedExchange
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import ShardSpec, make_parameter
from tests.rank_pool import ranks
from tests.small_model import ALONE, randn

SIZES = (37, 5, 300, 64)
DTYPE = torch.float64


def _buckets(cuts: tuple[tuple[int, ...], ...], sizes: tuple[int, ...] = SIZES) -> list[FlatBucket]:
    """Buckets that hold the parameters of these numbers."""
    parameters = [make_parameter(torch.zeros(n, dtype=DTYPE), ShardSpec(name=f"p{n}", shape=(n,))) for n in sizes]
    found = []
    for numbers in cuts:
        slots, start = [], 0
        for number in numbers:
            slots.append(Slot(number, start, start + sizes[number]))
            start += sizes[number]
        found.append(FlatBucket(Bucket(BucketClass(True, None, False), tuple(slots)), parameters, DTYPE))
    return found


def _values(coordinate: int, step: int, sizes: tuple[int, ...] = SIZES) -> list[torch.Tensor]:
    """By parameter."""
    return [randn(n, seed=1000 * step + 10 * coordinate + i) * 10.0**i for i, n in enumerate(sizes)]


def _compressed(value: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    scale = value.abs().sum() / max(int((~dead).sum()), 1)
    return torch.where(value >= 0, scale, -scale).masked_fill(dead, 0)


def _expected(size: int, dead: list[torch.Tensor], steps: int) -> list[list[torch.Tensor]]:
    """Results by step and parameter, from the definition: every rank's values at hand, no ranges, no buckets."""
    workers = [[torch.zeros(n, dtype=DTYPE) for n in SIZES] for _ in range(size)]
    servers = [torch.zeros(n, dtype=DTYPE) for n in SIZES]
    results = []
    for step in range(steps):
        row = []
        for i, mask in enumerate(dead):
            total = servers[i]
            for rank in range(size):
                value = _values(rank, step)[i].masked_fill(mask, 0) + workers[rank][i]
                sent = _compressed(value, mask)
                workers[rank][i] = value - sent
                total = total + sent / size
            row.append(_compressed(total, mask))
            servers[i] = total - row[-1]
        results.append(row)
    return results


def _dead() -> list[torch.Tensor]:
    return [randn(n, seed=77 + i) > 1.0 for i, n in enumerate(SIZES)]


def _run(ctx: ParallelContext, cuts: tuple[tuple[int, ...], ...], steps: int) -> list[list[torch.Tensor]]:
    exchange = CompressedExchange(_buckets(cuts), ctx)
    dead = [torch.cat([_dead()[i] for i in numbers]) for numbers in cuts]
    results = []
    for step in range(steps):
        own = _values(ctx.dp.coordinate, step)
        values = [torch.cat([own[i] for i in numbers]).masked_fill(m, 0) for numbers, m in zip(cuts, dead)]
        exchange.average(values, dead)
        row: dict[int, torch.Tensor] = {}
        for numbers, value in zip(cuts, values):
            row |= dict(zip(numbers, value.split([SIZES[i] for i in numbers])))
        results.append([row[i] for i in range(len(SIZES))])
    return results


def _assert_close(got: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> None:
    for step, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14, msg=f"step {step}, parameter {i}")


@ranks(2, 3)
def test_average_is_its_definition_whatever_the_buckets(ctx: ParallelContext) -> None:
    expected = _expected(ctx.dp.size, _dead(), 4)
    for cuts in (((0, 1, 2, 3),), ((3, 1), (2,), (0,)), ((1,), (0, 3, 2))):  # a bucket of 5 has ranges without elements
        _assert_close(_run(ctx, cuts, 4), expected)


def test_alone_it_compresses_too() -> None:
    _assert_close(_run(ALONE, ((0, 1, 2, 3),), 4), _expected(1, _dead(), 4))


@ranks(4)
def test_every_rank_gets_the_same_bits(ctx: ParallelContext) -> None:
    last = torch.cat(_run(ctx, ((2, 1), (0, 3)), 3)[-1])
    others = [torch.empty_like(last) for _ in range(ctx.dp.size)]
    dist.all_gather(others, last, group=ctx.dp.handle)
    assert all(torch.equal(other, last) for other in others)


@ranks({"tp": 2, "dp": 2}, {"tp": 3, "dp": 2})
def test_a_cut_over_tp_shows_nowhere(ctx: ParallelContext) -> None:
    tp = ctx.tp.size
    whole, replicated = 24 * tp, 10
    sizes = (24, replicated)
    exchange = CompressedExchange(_buckets(((0, 1),), sizes), ctx)
    dead = randn(whole, seed=5) > 1.0
    mine = slice(24 * ctx.tp.coordinate, 24 * ctx.tp.coordinate + 24)
    mask = torch.cat([dead[mine], torch.zeros(replicated, dtype=torch.bool)])
    workers = [torch.zeros(whole, dtype=DTYPE), torch.zeros(whole, dtype=DTYPE)]
    server = torch.zeros(whole, dtype=DTYPE)
    for step in range(3):
        rows = [randn(whole, seed=100 * step + rank).masked_fill(dead, 0) for rank in range(2)]
        both = randn(replicated, seed=9 + step)
        value = torch.cat([rows[ctx.dp.coordinate][mine], both])
        exchange.average([value], [mask])
        for rank in range(2):
            sent = _compressed(rows[rank] + workers[rank], dead)
            workers[rank] = rows[rank] + workers[rank] - sent
            server = server + sent / 2
        result = _compressed(server, dead)
        server = server - result
        torch.testing.assert_close(value[:24], result[mine], rtol=1e-12, atol=1e-14)
        if step == 0:
            torch.testing.assert_close(value[24:].abs(), both.abs().mean().expand(replicated), rtol=1e-12, atol=1e-14)


@ranks(2)
def test_nothing_is_lost_but_late(ctx: ParallelContext) -> None:
    steps = 20
    total = [torch.zeros(n, dtype=DTYPE) for n in SIZES]
    exchange = CompressedExchange(_buckets(((0, 1, 2, 3),)), ctx)
    dead = torch.zeros(sum(SIZES), dtype=torch.bool)
    received = torch.zeros(sum(SIZES), dtype=DTYPE)
    for step in range(steps):
        value = torch.cat(_values(ctx.dp.coordinate, step))
        exchange.average([value], [dead])
        received += value
        for rank in range(2):
            total = [t + v / 2 for t, v in zip(total, _values(rank, step))]
    (errors,) = exchange.errors
    lost = errors.worker.clone() / 2
    dist.all_reduce(lost, group=ctx.dp.handle)
    width = errors.server.numel()
    whole = torch.zeros(2 * width, dtype=DTYPE)
    whole[errors.start : errors.start + width] = errors.server
    dist.all_reduce(whole, group=ctx.dp.handle)
    torch.testing.assert_close(received + lost + whole[: lost.numel()], torch.cat(total), rtol=1e-9, atol=1e-9)
    exchange.forget()
    assert not errors.worker.any() and not errors.server.any()
