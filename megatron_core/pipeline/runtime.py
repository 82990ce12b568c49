# SPDX-License-Identifier: Apache-2.0
"""The one executor of pipeline programs: it does what the list says and decides nothing.

Between actions it keeps, for each (microbatch, chunk), the input that will receive a gradient and the edge of the graph
where backward starts. Outputs themselves are dropped once sent: the graph keeps what backward needs, and a gradient
edge is enough to start it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from megatron_core.model.gpt import GPTChunk
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.action import Action, Exchange, Kind
from megatron_core.pipeline.p2p import Mailbox
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue, WeightGradients

Key = tuple[int, int]  # (microbatch, chunk)


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
        self._chunks, self._ctx, self._queue = chunks, ctx, queue
        self._message_shape, self._dtype = message_shape, dtype
        self._last_chunk = len(chunks) - 1

    def run(
        self, program: Sequence[Action | Exchange], microbatches: Sequence[Microbatch], loss_weight: float
    ) -> PipelineResult:
        """Execute this stage's program. Each microbatch's backward starts from its summed loss times `loss_weight`.

        With gradients disabled (evaluation) a program of forwards alone is expected.
        """
        return _Run(self, program, microbatches, loss_weight).result()


class _Run:
    """State of one program run; it ends with the step, so that nothing can leak into the next."""

    def __init__(
        self,
        runtime: PipelineRuntime,
        program: Sequence[Action | Exchange],
        microbatches: Sequence[Microbatch],
        loss_weight: float,
    ) -> None:
        self._runtime, self._microbatches, self._loss_weight = runtime, microbatches, loss_weight
        self._mailbox = Mailbox(runtime._ctx, runtime._message_shape, runtime._dtype)
        self._inputs: dict[Key, torch.Tensor] = {}
        self._edges: dict[Key, GradientEdge] = {}
        self._weight_gradients: dict[Key, list[WeightGradients]] = {}
        device = runtime._ctx.device
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._token_count = torch.zeros((), dtype=torch.float64, device=device)
        for item in program:
            if isinstance(item, Exchange):
                self._mailbox.post(item)
            else:
                self._perform(item)
        self._mailbox.close()

    def result(self) -> PipelineResult:
        return PipelineResult(self._loss_sum, self._token_count)

    def _perform(self, action: Action) -> None:
        key = (action.microbatch, action.chunk)
        match action.kind:
            case Kind.F:
                self._forward(key)
            case Kind.B:
                self._backward(key)
            case Kind.I:
                with self._runtime._queue.deferred() as pending:
                    self._backward(key)
                self._weight_gradients[key] = pending
            case Kind.W:
                for closure in self._weight_gradients.pop(key):
                    closure()

    def _is_first(self, chunk: int) -> bool:
        return chunk == 0 and self._runtime._ctx.is_first_stage

    def _is_last(self, chunk: int) -> bool:
        return chunk == self._runtime._last_chunk and self._runtime._ctx.is_last_stage

    def _forward(self, key: Key) -> None:
        microbatch, chunk = key
        batch = self._microbatches[microbatch]
        hidden = None
        if not self._is_first(chunk):
            hidden = self._mailbox.take("activation", key)
            if torch.is_grad_enabled():
                self._inputs[key] = hidden.requires_grad_()
        output = self._runtime._chunks[chunk](hidden, batch)
        if self._is_last(chunk):
            assert batch.loss_mask is not None, "the last stage needs a loss mask"
            output = (output * batch.loss_mask).sum()
            self._loss_sum += output.detach()
            self._token_count += batch.loss_mask.sum()
        else:
            self._mailbox.put("activation", key, output.detach())
        if torch.is_grad_enabled():
            self._edges[key] = get_gradient_edge(output)

    def _backward(self, key: Key) -> None:
        chunk = key[1]
        if self._is_last(chunk):
            grad = torch.tensor(self._loss_weight, dtype=self._loss_dtype, device=self._runtime._ctx.device)
        else:
            grad = self._mailbox.take("gradient", key)
        torch.autograd.backward((self._edges.pop(key),), (grad,))
        if not self._is_first(chunk):
            grad_input = self._inputs.pop(key).grad
            assert grad_input is not None, "the chunk's input took no part in its output"
            self._mailbox.put("gradient", key, grad_input)

    @property
    def _loss_dtype(self) -> torch.dtype:
        return torch.float64 if self._runtime._dtype == torch.float64 else torch.float32
