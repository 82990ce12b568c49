# SPDX-License-Identifier: Apache-2.0
"""The executor on chunks of one weight each: y = x w, the loss is the last chunk's output, so all is known by hand."""

import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.runtime import PipelineRuntime
from megatron_core.pipeline.schedules import build, forward_only
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue
from tests.rank_pool import ranks

S, B = 3, 2
WEIGHTS = (2.0, 3.0, 5.0, 7.0)


class Product(nn.Module):
    """Multiplies by one weight; as the last chunk it gives losses [b, s]."""

    def __init__(self, weight: float, *, last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
        self.last = last
        self.outputs: list[weakref.ref[torch.Tensor]] = []
        self.alive_at_forward: list[int] = []

    def forward(self, hidden: torch.Tensor | None, batch: Microbatch) -> torch.Tensor:
        self.alive_at_forward.append(sum(output() is not None for output in self.outputs))
        x = batch.tokens.t().double().unsqueeze(-1) if hidden is None else hidden
        y = x * self.weight
        self.outputs.append(weakref.ref(y))
        return y.squeeze(-1).t() if self.last else y


def microbatches(m: int) -> list[Microbatch]:
    """Tokens i + 1 in microbatch i; the last target of each sample does not count."""
    mask = torch.tensor([[True, True, False]] * B)
    tokens = [torch.full((B, S), i + 1) for i in range(m)]
    return [Microbatch(position_ids=torch.arange(S)[None], tokens=t, labels=t, loss_mask=mask) for t in tokens]


def runtime(chunks: Sequence[nn.Module], ctx: ParallelContext) -> PipelineRuntime:
    return PipelineRuntime(chunks, ctx, WeightGradientQueue(), (S, B, 1), torch.float64)  # type: ignore[arg-type]


def chunks_of(ctx: ParallelContext, v: int) -> list[Product]:
    p = ctx.pp.size
    held = range(ctx.pp.coordinate, p * v, p)
    return [Product(WEIGHTS[k], last=k == p * v - 1) for k in held]


def train(ctx: ParallelContext, name: str, v: int, m: int) -> list[Product]:
    chunks = chunks_of(ctx, v)
    program = communicate(build(name, ctx.pp.size, v, m), v)[ctx.pp.coordinate]
    result = runtime(chunks, ctx).run(program, microbatches(m), loss_weight=0.5)
    factor = torch.tensor(WEIGHTS[: ctx.pp.size * v]).prod().item()
    total = factor * 4 * sum(range(1, m + 1))  # 4 targets a microbatch count
    if ctx.is_last_stage:
        assert (float(result.loss_sum), float(result.token_count)) == (total, 4 * m)
    else:
        assert (float(result.loss_sum), float(result.token_count)) == (0, 0)
    for chunk in chunks:
        assert chunk.weight.grad is not None
        assert chunk.weight.grad.item() == pytest.approx(0.5 * total / chunk.weight.item(), rel=1e-12)
    return chunks


@pytest.mark.parametrize("v", [1, 2, 4])
def test_one_stage_holds_all_chunks(v: int) -> None:
    train(single_process_context(), "interleaved", v, 3)


@pytest.mark.parametrize(("name", "v", "m"), [("gpipe", 1, 3), ("1f1b", 1, 5), ("interleaved", 2, 3)])
@ranks(2, pp=2)
def test_two_stages(ctx: ParallelContext, name: str, v: int, m: int) -> None:
    train(ctx, name, v, m)


def test_outputs_are_dropped_once_they_were_handed_over() -> None:
    """The graph needs inputs, not outputs: none is left when the same chunk runs its next forward."""
    chunks = train(single_process_context(), "interleaved", 2, 4)
    assert chunks[0].alive_at_forward == [0, 0, 0, 0]


def test_evaluation_keeps_nothing_for_a_backward() -> None:
    ctx = single_process_context()
    chunks = chunks_of(ctx, 2)
    with torch.no_grad():
        result = runtime(chunks, ctx).run(communicate(forward_only(1, 2, 3), 2)[0], microbatches(3), loss_weight=0.0)
    assert float(result.loss_sum) == 6 * 4 * 6 and chunks[0].weight.grad is None


class Logged(torch.autograd.Function):
    """x w with its weight gradient put into the queue, as linears do; writes down what happened when."""

    @staticmethod
    def forward(ctx, x, weight, chunk, number):
        ctx.chunk, ctx.number = chunk, number
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.chunk.log.append(f"I{ctx.number}")

        def weight_gradient() -> list[torch.Tensor | None]:
            assert not torch.is_grad_enabled()
            ctx.chunk.log.append(f"W{ctx.number}")
            ctx.chunk.total += float((grad * x).sum())
            return [None]

        (weight_grad,) = ctx.chunk.queue.run(weight_gradient, 1)
        return grad * weight, weight_grad, None, None


class LoggedProduct(nn.Module):
    def __init__(self, queue: WeightGradientQueue, *, last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.queue, self.last, self.log, self.total = queue, last, [], 0.0

    def forward(self, hidden: torch.Tensor | None, batch: Microbatch) -> torch.Tensor:
        number = int(batch.tokens[0, 0]) - 1
        x = batch.tokens.t().double().unsqueeze(-1).requires_grad_() if hidden is None else hidden
        y = Logged.apply(x, self.weight, self, number)
        return y.squeeze(-1).t() if self.last else y


@ranks(2, pp=2)
def test_zero_bubble_puts_weight_gradients_where_the_schedule_has_them(ctx: ParallelContext) -> None:
    """On the last of two stages W is one behind I; what it adds up to is the whole gradient all the same."""
    queue = WeightGradientQueue()
    chunk = LoggedProduct(queue, last=ctx.is_last_stage)
    program = communicate(build("zero-bubble", 2, 1, 3), 1)[ctx.pp.coordinate]
    actions = [item for item in program if isinstance(item, Action) and item.kind is not Kind.F]
    runtime = PipelineRuntime([chunk], ctx, queue, (S, B, 1), torch.float64)  # type: ignore[list-item]
    runtime.run(program, microbatches(3), loss_weight=0.5)
    planned = [f"{kind}{a.microbatch}" for a in actions for kind in ("IW" if a.kind is Kind.B else a.kind.value)]
    assert chunk.log == planned
    if ctx.is_last_stage:
        assert planned == ["I0", "I1", "W0", "I2", "W1", "W2"]
    assert chunk.total == 0.5 * 2 * 4 * (1 + 2 + 3)
