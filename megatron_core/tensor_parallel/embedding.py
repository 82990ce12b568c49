# SPDX-License-Identifier: Apache-2.0
"""Vocabulary-parallel token embedding: each rank looks up the ids it stores, the sum over tp is the embedding."""

from typing import Any

import torch
from torch import nn

from megatron_core.parallel.context import Group
from megatron_core.tensor_parallel.mappings import reduce_from_tensor_parallel
from megatron_core.tensor_parallel.shard_spec import SpecParameter
from megatron_core.tensor_parallel.vocab import VocabSlice


class _Lookup(torch.autograd.Function):
    """forward(weight [rows, h], ids [s, b], slice) -> [s, b, h], zero where another rank stores the id.

    The backward adds rows straight into the accumulator: a dense gradient of the table would cost as much as the table.
    """

    @staticmethod
    def forward(ctx: Any, weight: SpecParameter, ids: torch.Tensor, piece: VocabSlice) -> torch.Tensor:
        local = ids.reshape(-1) - piece.start
        owned = (local >= 0) & (local < piece.stop - piece.start)
        local = torch.where(owned, local, 0)
        ctx.weight = weight
        ctx.save_for_backward(local, owned)
        rows = weight.index_select(0, local) * owned.unsqueeze(-1)
        return rows.view(*ids.shape, weight.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        local, owned = ctx.saved_tensors
        weight: SpecParameter = ctx.weight
        accumulator = weight.main_grad
        total = torch.zeros_like(weight) if accumulator is None else accumulator
        rows = grad.reshape(-1, grad.shape[-1]) * owned.unsqueeze(-1)
        if total.is_cuda:
            # index_add_ uses atomics on CUDA; this sorts first and so gives the same bits every time.
            total.index_put_((local,), rows.to(total.dtype), accumulate=True)
        else:
            total.index_add_(0, local, rows.to(total.dtype))
        if accumulator is None:
            return total, None, None
        weight.gradient_ready()
        return None, None, None


class VocabParallelEmbedding(nn.Module):
    """Token embedding over tp; under sequence parallelism its output is cut along the sequence."""

    def __init__(self, weight: SpecParameter, piece: VocabSlice, group: Group, sequence_parallel: bool) -> None:
        super().__init__()
        self.weight = weight
        self._piece, self._group, self._sequence_parallel = piece, group, sequence_parallel

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [s, b] to [s, b, h] (or [s/tp, b, h])."""
        partial: torch.Tensor = _Lookup.apply(self.weight, ids, self._piece)
        return reduce_from_tensor_parallel(partial, self._group, self._sequence_parallel)
