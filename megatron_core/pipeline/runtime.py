# SPDX-License-Identifier: Apache-2.0
"""The one executor of pipeline programs: it does what the list says and decides nothing.

Between actions it keeps, for each (microbatch, chunk), the input that will receive a gradient and a scalar from which
backward starts. Outputs themselves are dropped once sent: the graph keeps what backward needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megatron_core.model.gpt import GPTChunk
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.action import Action, Exchange, Kind
from megatron_core.pipeline.p2p import Mailbox
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue, WeightGradients

Key = tuple[int, int]  # (microbatch, chunk)


class _Slot:
    """Where the gradient of an output is put before its backward starts."""

    gradient: torch.Tensor | None = None


class _Departure(torch.autograd.Function):
    """Stands at the end of a chunk's graph in place of its output: a scalar whose backward yields the slot's gradient.

    `torch.autograd.backward(output, gradient)` would need the output itself, and imports sympy on first use, which
    costs seconds at the start of many ranks; a scalar needs neither.
    """

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, slot: _Slot) -> torch.Tensor:
        ctx.slot = slot
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        return ctx.slot.gradient, None


@dataclass(frozen=True)
class PipelineResult:
    """Sums over this rank's microbatches; zero on ranks without the last stage."""

    loss_sum: torch.Tensor
    token_count: torch.Tensor


class PipelineRuntime:
    """Runs programs over the chunks that this rank holds."""

    def __init__(
        self,
        chunks: Sequence[GPTChunk],
        ctx: ParallelContext,
        queue: WeightGradientQueue,
        message_shape: tuple[int, int, int],
        dtype: torch.dtype,
    ) -> None:
        """`message_shape`: of what crosses stages, [s, b, h] or with sequence parallelism [s/tp, b, h]."""
        self.chunks, self.ctx, self.queue = chunks, ctx, queue
        self.message_shape, self.dtype = message_shape, dtype
        self.last_chunk = len(chunks) - 1

    def run(
        self, program: Sequence[Action | Exchange], microbatches: Sequence[Microbatch], loss_weight: float
    ) -> PipelineResult:
        """Execute this stage's program. Each microbatch's backward starts from its summed loss times `loss_weight`.

        With gradients disabled (evaluation) a program of forwards alone is expected.
        """
        return PipelineRun(self, program, microbatches, loss_weight).result()


class PipelineRun:
    """State of one program run; it ends with the step, so that nothing can leak into the next."""

    def __init__(
        self,
        runtime: PipelineRuntime,
        program: Sequence[Action | Exchange],
        microbatches: Sequence[Microbatch],
        loss_weight: float,
    ) -> None:
        self._runtime, self._microbatches, self._loss_weight = runtime, microbatches, loss_weight
        self._mailbox = Mailbox(runtime.ctx, runtime.message_shape, runtime.dtype)
        self._inputs: dict[Key, torch.Tensor] = {}
        self._starts: dict[Key, tuple[torch.Tensor, _Slot]] = {}
        self._weight_gradients: dict[Key, list[WeightGradients]] = {}
        device = runtime.ctx.device
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._token_count = torch.zeros((), dtype=torch.float64, device=device)
        for item in program:
            if isinstance(item, Exchange):
                self._mailbox.post(item)
            else:
                self.perform(item)
        self._mailbox.close()

    def result(self) -> PipelineResult:
        """What came of it."""
        return PipelineResult(self._loss_sum, self._token_count)

    def perform(self, action: Action) -> None:
        """One piece of compute; its messages have been posted."""
        key = (action.microbatch, action.chunk)
        match action.kind:
            case Kind.F:
                self._forward(key)
            case Kind.B:
                self._backward(key)
            case Kind.I:
                with self._runtime.queue.deferred() as pending:
                    self._backward(key)
                self._weight_gradients[key] = pending
            case Kind.W:
                with torch.no_grad():
                    for closure in self._weight_gradients.pop(key):
                        closure()

    def _is_first(self, chunk: int) -> bool:
        return chunk == 0 and self._runtime.ctx.is_first_stage

    def _is_last(self, chunk: int) -> bool:
        return chunk == self._runtime.last_chunk and self._runtime.ctx.is_last_stage

    def _forward(self, key: Key) -> None:
        microbatch, chunk = key
        batch = self._microbatches[microbatch]
        hidden = None
        if not self._is_first(chunk):
            hidden = self._mailbox.take("activation", key)
            if torch.is_grad_enabled():
                self._inputs[key] = hidden.requires_grad_()
        output = self._runtime.chunks[chunk](hidden, batch)
        slot = _Slot()
        if self._is_last(chunk):
            assert batch.loss_mask is not None, "the last stage needs a loss mask"
            loss_sum = (output * batch.loss_mask).sum()
            self._loss_sum += loss_sum.detach()
            self._token_count += batch.loss_mask.sum()
            start = loss_sum * self._loss_weight
        else:
            self._mailbox.put("activation", key, output.detach())
            start = _Departure.apply(output, slot)
        if torch.is_grad_enabled():
            self._starts[key] = (start, slot)

    def _backward(self, key: Key) -> None:
        chunk = key[1]
        start, slot = self._starts.pop(key)
        if not self._is_last(chunk):
            slot.gradient = self._mailbox.take("gradient", key)
        start.backward()
        if not self._is_first(chunk):
            grad_input = self._inputs.pop(key).grad
            assert grad_input is not None, "the chunk's input took no part in its output"
            self._mailbox.put("gradient", key, grad_input)
