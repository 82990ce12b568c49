# SPDX-License-Identifier: Apache-2.0
"""Column- and row-parallel linears against torch's linear in float64: outputs, input and weight gradients, biases."""

import time
import weakref
from collections.abc import Sequence
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import Group, ParallelContext, single_process_context
from megatron_core.tensor_parallel import linear
from megatron_core.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from megatron_core.tensor_parallel.shard_spec import SpecParameter, cut_spec, make_parameter, replicated_spec
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue, WeightGradients
from tests.rank_pool import ranks
from tests.small_model import gathered, randn

S, B, K = 8, 2, 12
LAYOUTS = ({"tp": 2}, {"tp": 4})
ALONE = single_process_context()
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def _cut(ctx: ParallelContext, name: str, whole: torch.Tensor, dim: int) -> SpecParameter:
    spec = cut_spec(name, tuple(whole.shape), dim, ctx)
    return make_parameter(spec.take(whole).clone(), spec)


def _local(x: torch.Tensor, ctx: ParallelContext, sequence_parallel: bool) -> torch.Tensor:
    """What a rank holds of a tensor [s, ...] outside the region, as a leaf."""
    part = x.chunk(ctx.tp.size)[ctx.tp.coordinate] if sequence_parallel else x
    return part.clone().requires_grad_()


def _whole(x: torch.Tensor, ctx: ParallelContext, sequence_parallel: bool) -> torch.Tensor:
    return all_gather(x, ctx.tp) if sequence_parallel else x


def _input_backward(
    outputs: Sequence[torch.Tensor], upstreams: Sequence[torch.Tensor], queue: WeightGradientQueue
) -> list[WeightGradients]:
    """An I action; returns the W actions that it leaves."""
    with queue.deferred() as pending:
        torch.autograd.backward(outputs, upstreams)
    return pending


def _run_w_actions(pending: list[WeightGradients]) -> None:
    with torch.no_grad():
        for closure in pending:
            closure()


def _check_column(ctx: ParallelContext, sequence_parallel: bool, deferred: bool) -> None:
    wholes = [randn(8, 2, K, seed=1), randn(4, K, seed=2)]  # the first has more than two dims, cut along the first
    bias = randn(8, 2, seed=3)
    queue = WeightGradientQueue()
    weights = [_cut(ctx, f"w{i}", whole, 0) for i, whole in enumerate(wholes)]
    biases = [_cut(ctx, "b", bias, 0), None]
    layer = ColumnParallelLinear(weights, biases, ctx.tp, sequence_parallel, queue)
    x, upstreams = randn(S, B, K), [randn(S, B, 16, seed=4), randn(S, B, 4, seed=5)]
    local_x = _local(x, ctx, sequence_parallel)
    mine = [upstream.chunk(ctx.tp.size, -1)[ctx.tp.coordinate] for upstream in upstreams]
    if deferred:
        for weight in weights:
            weight.main_grad = torch.zeros_like(weight)
    outputs = layer(local_x)
    with torch.no_grad():
        assert all(map(torch.equal, layer(local_x), outputs)), "without gradients it computes something else"
    if deferred:
        pending = _input_backward(outputs, mine, queue)
        assert all(not weight.main_grad.any() for weight in weights), "the weight gradient came before its W action"
        _run_w_actions(pending)
    else:
        torch.autograd.backward(outputs, mine)

    leaves = [t.clone().requires_grad_() for t in (x, *wholes, bias)]
    expected = [F.linear(leaves[0], leaves[1].view(16, K), leaves[3].view(16)), F.linear(leaves[0], leaves[2])]
    torch.autograd.backward(expected, upstreams)
    for got, reference in zip(outputs, expected):
        torch.testing.assert_close(got, reference.chunk(ctx.tp.size, -1)[ctx.tp.coordinate], **CLOSE)
    torch.testing.assert_close(_whole(local_x.grad, ctx, sequence_parallel), leaves[0].grad, **CLOSE)
    for parameter, leaf in zip((*weights, biases[0]), leaves[1:]):
        grad = parameter.main_grad if parameter.main_grad is not None else parameter.grad
        torch.testing.assert_close(gathered(grad, parameter.spec, ctx), leaf.grad, **CLOSE)


def _check_row(ctx: ParallelContext, sequence_parallel: bool, deferred: bool) -> None:
    whole, bias = randn(6, 4, 3, seed=1), randn(6, seed=2)  # [h, a, d], cut along a
    queue = WeightGradientQueue()
    weight = _cut(ctx, "w", whole, 1)
    own_bias = make_parameter(bias.clone(), replicated_spec("b", (6,), ctx))
    layer = RowParallelLinear(weight, own_bias, ctx.tp, sequence_parallel, queue)
    x, upstream = randn(S, B, K), randn(S, B, 6, seed=3)
    local_x = x.chunk(ctx.tp.size, -1)[ctx.tp.coordinate].clone().requires_grad_()
    if deferred:
        weight.main_grad = torch.zeros_like(weight)
    y = layer(local_x)
    with torch.no_grad():
        assert torch.equal(layer(local_x), y), "without gradients it computes something else"
    upstream_here = _local(upstream, ctx, sequence_parallel).detach()
    if deferred:
        _run_w_actions(_input_backward([y], [upstream_here], queue))
    else:
        y.backward(upstream_here)

    leaves = [t.clone().requires_grad_() for t in (x, whole, bias)]
    expected = F.linear(leaves[0], leaves[1].view(6, K), leaves[2])
    expected.backward(upstream)
    torch.testing.assert_close(_whole(y.detach(), ctx, sequence_parallel), expected.detach(), **CLOSE)
    torch.testing.assert_close(local_x.grad, leaves[0].grad.chunk(ctx.tp.size, -1)[ctx.tp.coordinate], **CLOSE)
    grad = weight.main_grad if deferred else weight.grad
    torch.testing.assert_close(gathered(grad, weight.spec, ctx), leaves[1].grad, **CLOSE)
    torch.testing.assert_close(own_bias.grad, leaves[2].grad, **CLOSE)


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks(*LAYOUTS)
def test_linears_equal_one_process(ctx: ParallelContext, sequence_parallel: bool, deferred: bool) -> None:
    _check_column(ctx, sequence_parallel, deferred)
    _check_row(ctx, sequence_parallel, deferred)


@ranks(2, tp=2)
def test_no_gathered_tensor_waits_for_a_w_action(ctx: ParallelContext) -> None:
    """Between I and W a linear keeps its own part of the sequence: that is why it gathers twice."""
    gathered_tensors: list[weakref.ref[torch.Tensor]] = []

    def recorded(tensor: torch.Tensor, group: Group) -> torch.Tensor:
        whole = all_gather(tensor, group)
        gathered_tensors.append(weakref.ref(whole))
        return whole

    queue = WeightGradientQueue()
    weight = _cut(ctx, "w", randn(6, K, seed=1), 1)
    weight.main_grad = torch.zeros_like(weight)
    x = randn(S, B, K // 2).requires_grad_()
    with patch.object(linear, "all_gather", recorded):
        y = RowParallelLinear(weight, None, ctx.tp, True, queue)(x)
        pending = _input_backward([y], [torch.ones_like(y)], queue)
        (reference,) = gathered_tensors
        deadline = time.monotonic() + 10
        while reference() is not None and time.monotonic() < deadline:
            time.sleep(0.001)  # gloo's own thread lets go of a tensor a moment after the wait for it
        assert reference() is None
        _run_w_actions(pending)
    assert len(gathered_tensors) == 2 and weight.main_grad.any()


def test_linears_alone() -> None:
    _check_column(ALONE, False, False)
    _check_row(ALONE, False, False)


def test_no_input_gradient_is_computed_for_an_input_that_needs_none() -> None:
    weight = _cut(ALONE, "w", randn(4, K), 0)
    layer = ColumnParallelLinear([weight], [None], ALONE.tp, False, WeightGradientQueue())
    (y,) = layer(randn(S, B, K))
    y.sum().backward()
    assert weight.grad is not None


def test_one_bias_a_weight() -> None:
    with pytest.raises(AssertionError, match="1 weights and 0 biases"):
        ColumnParallelLinear([_cut(ALONE, "w", randn(4, K), 0)], [], ALONE.tp, False, WeightGradientQueue())
