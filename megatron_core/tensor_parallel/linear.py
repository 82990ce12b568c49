# SPDX-License-Identifier: Apache-2.0
"""Column- and row-parallel linears (Shoeybi et al. 2019, section 3), with f/g or their sequence-parallel twins inside.

    column   y_i = f(x) W_i^T + b_i        output features cut over tp; several weights may share one input
    row      y   = g(sum_i x_i W_i^T) + b  input features cut over tp

Communication runs beside the GEMM that does not need it: the input gradient's reduction beside the weight gradient, the
second gather of x beside the input gradient. Shapes: x [s, b, k]; with sequence parallelism [s/tp, b, k] outside the
region. Weights may have any number of dims; they are read as matrices [m, k].
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from megatron_core.kernels.matmul import input_gradient, linear
from megatron_core.kernels.packed_weight import PackedWeight, pack
from megatron_core.parallel.collectives import (
    DONE,
    Work,
    all_gather,
    all_gather_async,
    all_reduce,
    all_reduce_async,
    reduce_scatter,
    reduce_scatter_async,
)
from megatron_core.parallel.context import Group
from megatron_core.tensor_parallel.kept import Kept
from megatron_core.tensor_parallel.shard_spec import SpecParameter
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue, accumulate

Weight = SpecParameter | PackedWeight


def _matrix(weight: torch.Tensor, features_in: int) -> torch.Tensor:
    return weight.reshape(-1, features_in)


def _flat_sum(grad: torch.Tensor) -> torch.Tensor:
    return grad.reshape(-1, grad.shape[-1]).sum(0)


def _product(x: torch.Tensor, weight: Weight, bias: SpecParameter | None) -> torch.Tensor:
    own_bias = None if bias is None else bias.view(-1)
    if isinstance(weight, PackedWeight):
        return weight.linear(x, own_bias)
    return linear(x, _matrix(weight, x.shape[-1]), own_bias)


def _column(
    x: torch.Tensor,
    group: Group,
    sequence_parallel: bool,
    weights: Sequence[Weight],
    biases: Sequence[SpecParameter | None],
) -> tuple[torch.Tensor, ...]:
    gathered = all_gather(x, group) if sequence_parallel else x
    return tuple(_product(gathered, weight, bias) for weight, bias in zip(weights, biases))


def _row(
    x: torch.Tensor, weight: Weight, bias: SpecParameter | None, group: Group, sequence_parallel: bool
) -> torch.Tensor:
    # The bias rides in the first member's GEMM, so that the sum over tp holds it once.
    partial = _product(x, weight, bias if group.coordinate == 0 else None)
    return reduce_scatter(partial, group) if sequence_parallel else all_reduce(partial, group)


class _Column(torch.autograd.Function):
    """forward(x, kept x, group, sequence_parallel, queue, count, *weights, *biases) -> one output a weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        kept: Kept,
        group: Group,
        sequence_parallel: bool,
        queue: WeightGradientQueue,
        count: int,
        *parameters: SpecParameter | None,
    ) -> tuple[torch.Tensor, ...]:
        ctx.group, ctx.sequence_parallel, ctx.queue = group, sequence_parallel, queue
        weights, ctx.biases = [weight for weight in parameters[:count] if weight is not None], parameters[count:]
        # The parameters themselves are kept, not saved tensors: their gradients go to `main_grad`, and the optimizer
        # may only change them after the last backward.
        ctx.weights, ctx.kept = weights, kept
        return _column(x, group, sequence_parallel, weights, ctx.biases)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # Without its graph: a closure that waits for W would keep the chunk's input with it, and its gradient.
        x, ctx.kept = ctx.kept.tensor.detach(), None
        group, sequence_parallel, queue, weights = ctx.group, ctx.sequence_parallel, ctx.queue, ctx.weights
        deferring = queue.deferring
        regathered, gathering = all_gather_async(x, group) if sequence_parallel and not deferring else (x, DONE)
        grad_x, reducing = None, DONE
        if ctx.needs_input_grad[0]:
            grad_x = input_gradient(grads[0], _matrix(weights[0], x.shape[-1]))
            for grad, weight in zip(grads[1:], weights[1:]):
                grad_x += input_gradient(grad, _matrix(weight, x.shape[-1]))
            grad_x, reducing = _reduce_async(grad_x, group, sequence_parallel)
        gathering.wait()

        def weight_gradients() -> list[torch.Tensor | None]:
            whole = all_gather(x, group) if sequence_parallel and deferring else regathered
            return [accumulate(weight, grad, whole) for weight, grad in zip(weights, grads)]

        grad_weights = queue.run(weight_gradients, len(weights))
        grad_biases = [
            None if bias is None else _flat_sum(grad).view(bias.shape) for bias, grad in zip(ctx.biases, grads)
        ]
        reducing.wait()
        return grad_x, None, None, None, None, None, *grad_weights, *grad_biases


def _reduce_async(grad_x: torch.Tensor, group: Group, sequence_parallel: bool) -> tuple[torch.Tensor, Work]:
    if sequence_parallel:
        return reduce_scatter_async(grad_x, group)
    return grad_x, all_reduce_async(grad_x, group)


class _Row(torch.autograd.Function):
    """forward(x, kept x, weight, bias, group, sequence_parallel, queue) -> y."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        kept: Kept,
        weight: SpecParameter,
        bias: SpecParameter | None,
        group: Group,
        sequence_parallel: bool,
        queue: WeightGradientQueue,
    ) -> torch.Tensor:
        ctx.weight, ctx.bias, ctx.kept = weight, bias, kept
        ctx.group, ctx.sequence_parallel, ctx.queue = group, sequence_parallel, queue
        return _row(x, weight, bias, group, sequence_parallel)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, ctx.kept = ctx.kept.tensor.detach(), None
        weight, group = ctx.weight, ctx.group
        whole = all_gather(grad, group) if ctx.sequence_parallel else grad
        grad_x = input_gradient(whole, _matrix(weight, x.shape[-1])) if ctx.needs_input_grad[0] else None
        grad_bias = None if ctx.bias is None else _flat_sum(whole)
        gather_again = ctx.sequence_parallel and ctx.queue.deferring
        # Kept until a W action, the gathered gradient would cost tp times the memory: the closure holds this rank's
        # part alone, and gathers again.
        held = grad if gather_again else whole

        def weight_gradients() -> list[torch.Tensor | None]:
            return [accumulate(weight, all_gather(held, group) if gather_again else held, x)]

        (grad_weight,) = ctx.queue.run(weight_gradients, 1)
        return grad_x, None, grad_weight, grad_bias, None, None, None


class ColumnParallelLinear(nn.Module):
    """Weights [.., k] of which each rank holds a slice of the output features, applied to one shared input."""

    def __init__(
        self,
        weights: list[SpecParameter],
        biases: list[SpecParameter | None],
        group: Group,
        sequence_parallel: bool,
        queue: WeightGradientQueue,
    ) -> None:
        super().__init__()
        assert len(weights) == len(biases), f"{len(weights)} weights and {len(biases)} biases"
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList([bias for bias in biases if bias is not None])
        self._bias_of = list(biases)
        self._operands: list[Weight] = list(weights)
        self._group, self._sequence_parallel, self._queue = group, sequence_parallel, queue

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """x [s, b, k] (or [s/tp, b, k]) to one y [s, b, m_i / tp] a weight."""
        if not torch.is_grad_enabled():  # a node costs more than the product of a few tokens
            return _column(x, self._group, self._sequence_parallel, self._operands, self._bias_of)
        outputs: tuple[torch.Tensor, ...] = _Column.apply(
            x,
            Kept(x),
            self._group,
            self._sequence_parallel,
            self._queue,
            len(self._operands),
            *self._operands,
            *self._bias_of,
        )
        return outputs

    def of_whole(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Without gradients: the same for an x [..., k] that is whole on every rank, sequence parallelism or not."""
        return _column(x, self._group, False, self._operands, self._bias_of)

    def pack(self) -> list[SpecParameter]:
        """Turn to weights as a CPU multiplies few rows by them fastest, for good and without gradients.

        Returns the parameters that it needs no more.
        """
        packed = [pack(_matrix(weight, weight.shape[-1])) for weight in self.weights]
        self._operands = [blocks or weight for blocks, weight in zip(packed, self.weights)]
        return [weight for blocks, weight in zip(packed, self.weights) if blocks is not None]


class RowParallelLinear(nn.Module):
    """A weight [h, .., k/tp] of which each rank holds a slice of the input features."""

    def __init__(
        self,
        weight: SpecParameter,
        bias: SpecParameter | None,
        group: Group,
        sequence_parallel: bool,
        queue: WeightGradientQueue,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self._operands: list[Weight] = [weight]  # a list: whatever a module holds itself must stay a parameter
        self._features_in = math.prod(weight.shape[1:])
        self._group, self._sequence_parallel, self._queue = group, sequence_parallel, queue

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [s, b, k/tp] to y [s, b, h] (or [s/tp, b, h])."""
        if not torch.is_grad_enabled():
            return _row(x, self._operands[0], self.bias, self._group, self._sequence_parallel)
        y: torch.Tensor = _Row.apply(
            x, Kept(x), self.weight, self.bias, self._group, self._sequence_parallel, self._queue
        )
        return y

    def pack(self) -> list[SpecParameter]:
        """As `ColumnParallelLinear.pack`."""
        packed = pack(_matrix(self.weight, self._features_in))
        self._operands = [packed or self.weight]
        return [] if packed is None else [self.weight]
