# SPDX-License-Identifier: Apache-2.0
"""The two-phase average against its definition on whole tensors, and what it must not depend on."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist

from megatron_core.data_parallel.buckets import Bucket, BucketClass, Slot
from megatron_core.data_parallel.compressed_exchange import CompressedExchange
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import ShardSpec, cut_spec, make_parameter, replicated_spec
from tests.rank_pool import ranks
from tests.small_model import ALONE, randn

SPECS = [ShardSpec(name=f"p{i}", shape=shape) for i, shape in enumerate([(37,), (5,), (4, 3, 130), (8, 128)])]
SIZES = [math.prod(spec.shape) for spec in SPECS]
DTYPE = torch.float64


def _buckets(cuts: tuple[tuple[int, ...], ...], specs: Sequence[ShardSpec] = SPECS) -> list[FlatBucket]:
    """Buckets that hold the parameters of these numbers."""
    parameters = [make_parameter(torch.zeros(spec.local_shape, dtype=DTYPE), spec) for spec in specs]
    found = []
    for numbers in cuts:
        slots, start = [], 0
        for number in numbers:
            slots.append(Slot(number, start, start + parameters[number].numel()))
            start = slots[-1].stop
        found.append(FlatBucket(Bucket(BucketClass(True, None, False), tuple(slots)), parameters, DTYPE))
    return found


def _values(coordinate: int, step: int) -> list[torch.Tensor]:
    """By parameter."""
    return [randn(*s.shape, seed=1000 * step + 10 * coordinate + i) * 10.0**i for i, s in enumerate(SPECS)]


def _compressed(value: torch.Tensor, dead: torch.Tensor) -> torch.Tensor:
    counts = (~dead).sum(-1, keepdim=True).clamp(min=1)
    scale = (value.abs().sum(-1, keepdim=True) / counts).bfloat16().to(DTYPE)
    return torch.where(value >= 0, scale, -scale).masked_fill(dead, 0)


class _Definition:
    """The average of one whole tensor: every rank's values at hand, no ranges, no buckets."""

    def __init__(self, size: int, dead: torch.Tensor) -> None:
        self._dead = dead
        self.workers = [torch.zeros(dead.shape, dtype=DTYPE) for _ in range(size)]
        self.server = torch.zeros(dead.shape, dtype=DTYPE)

    def average(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        for i, value in enumerate(values):
            value = value.masked_fill(self._dead, 0) + self.workers[i]
            sent = _compressed(value, self._dead)
            self.workers[i] = value - sent
            self.server = self.server + sent / len(values)
        result = _compressed(self.server, self._dead)
        self.server = self.server - result
        return result


def _expected(size: int, steps: int) -> list[list[torch.Tensor]]:
    """Results by step and parameter."""
    definitions = [_Definition(size, dead) for dead in _dead()]
    results = []
    for step in range(steps):
        rows = [_values(rank, step) for rank in range(size)]
        results.append([one.average([row[i] for row in rows]).view(-1) for i, one in enumerate(definitions)])
    return results


def _dead() -> list[torch.Tensor]:
    found = [randn(*spec.shape, seed=77 + i) > 1.0 for i, spec in enumerate(SPECS)]
    found[3][2] = True  # a whole row
    return found


def _run(ctx: ParallelContext, cuts: tuple[tuple[int, ...], ...], steps: int) -> list[list[torch.Tensor]]:
    exchange = CompressedExchange(_buckets(cuts), ctx)
    dead = [torch.cat([_dead()[i].view(-1) for i in numbers]) for numbers in cuts]
    results = []
    for step in range(steps):
        own = [value.view(-1) for value in _values(ctx.dp.coordinate, step)]
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
    expected = _expected(ctx.dp.size, 4)
    for cuts in (
        ((0, 1, 2, 3),),
        ((3, 1), (2,), (0,)),
        ((1,), (0, 3, 2)),
    ):  # some have fewer rows than servers
        _assert_close(_run(ctx, cuts, 4), expected)


def test_alone_it_compresses_too() -> None:
    _assert_close(_run(ALONE, ((0, 1, 2, 3),), 4), _expected(1, 4))


@ranks(4)
def test_every_rank_gets_the_same_bits(ctx: ParallelContext) -> None:
    last = torch.cat(_run(ctx, ((2, 1), (0, 3)), 3)[-1])
    others = [torch.empty_like(last) for _ in range(ctx.dp.size)]
    dist.all_gather(others, last, group=ctx.dp.handle)
    assert all(torch.equal(other, last) for other in others)


@ranks({"tp": 2, "dp": 2}, {"tp": 3, "dp": 2})
def test_a_cut_over_tp_shows_nowhere(ctx: ParallelContext) -> None:
    """Cut within rows (a down projection, a bias), between them (q), and whole."""
    tp = ctx.tp.size
    specs = [
        cut_spec("down", (6, 64 * tp), 1, ctx),
        cut_spec("q", (2 * tp, 3, 128), 0, ctx),
        cut_spec("bias", (4 * tp,), 0, ctx),
        replicated_spec("norm", (10,), ctx),
    ]
    exchange = CompressedExchange(_buckets(((0, 1, 2, 3),), specs), ctx)
    dead = [randn(*spec.shape, seed=5 + i) > 1.0 for i, spec in enumerate(specs)]
    mask = torch.cat([spec.take(d).reshape(-1) for spec, d in zip(specs, dead)])
    definitions = [_Definition(2, d) for d in dead]
    for step in range(3):
        rows = [[randn(*s.shape, seed=100 * step + 10 * r + i) for i, s in enumerate(specs)] for r in range(2)]
        own = [spec.take(value).reshape(-1) for spec, value in zip(specs, rows[ctx.dp.coordinate])]
        value = torch.cat(own).masked_fill(mask, 0)
        exchange.average([value], [mask])
        wanted = [one.average([row[i] for row in rows]) for i, one in enumerate(definitions)]
        expected = torch.cat([spec.take(whole).reshape(-1) for spec, whole in zip(specs, wanted)])
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


@ranks({"tp": 2, "dp": 1})
def test_no_row_needs_to_be_cut(ctx: ParallelContext) -> None:
    spec = cut_spec("q", (4, 128), 0, ctx)
    exchange = CompressedExchange(_buckets(((0,),), [spec]), ctx)
    whole = randn(4, 128)
    value = spec.take(whole).reshape(-1).clone()
    exchange.average([value], [torch.zeros(256, dtype=torch.bool)])
    expected = spec.take(_compressed(_compressed(whole, whole > 99), whole > 99)).reshape(-1)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)


@ranks(2)
def test_nothing_is_lost_but_late(ctx: ParallelContext) -> None:
    steps = 20
    total = [torch.zeros(n, dtype=DTYPE) for n in SIZES]
    exchange = CompressedExchange(_buckets(((0, 1, 2, 3),)), ctx)
    dead = torch.zeros(sum(SIZES), dtype=torch.bool)
    received = torch.zeros(sum(SIZES), dtype=DTYPE)
    for step in range(steps):
        value = torch.cat([own.view(-1) for own in _values(ctx.dp.coordinate, step)])
        exchange.average([value], [dead])
        received += value
        for rank in range(2):
            total = [t + v.view(-1) / 2 for t, v in zip(total, _values(rank, step))]
    (errors,) = exchange.errors
    lost = errors.worker.clone() / 2
    dist.all_reduce(lost, group=ctx.dp.handle)
    whole = torch.zeros_like(lost)
    whole[errors.start : errors.start + errors.server.numel()] = errors.server
    dist.all_reduce(whole, group=ctx.dp.handle)
    torch.testing.assert_close(received + lost + whole, torch.cat(total), rtol=1e-9, atol=1e-9)
    exchange.forget()
    assert not errors.worker.any() and not errors.server.any()
