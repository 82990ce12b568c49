# SPDX-License-Identifier: Apache-2.0
"""One transformer layer with the norm before each branch (GPT-2): two residual lines, one after the other or side by
side (GPT-J)."""

from collections.abc import Callable

import torch
from torch import nn

from megatron_core.attention.self_attention import AttentionInputs
from megatron_core.kernels.dropout import hidden_dropout
from megatron_core.model.attention_layer import build_attention
from megatron_core.model.mlp import MLP
from megatron_core.model.norm import Norm
from megatron_core.model.parameters import ParameterFactory
from megatron_core.model.positions import local_positions
from megatron_core.model.recompute import AS_IT_IS, Keeping, recomputed, remade


class Block(nn.Module):
    """x + dropout(attention(norm(x))), then x + dropout(mlp(norm(x))); side by side, both read the same x."""

    def __init__(self, factory: ParameterFactory, layer: int) -> None:
        """`layer`: global number, from 0."""
        super().__init__()
        h = factory.config.hidden_size
        self.attention_norm = Norm(factory, f"layers.{layer}.attention_norm", h)
        self.attention = build_attention(factory, layer)
        self.mlp_norm = Norm(factory, f"layers.{layer}.mlp_norm", h)
        self.mlp = MLP(factory, layer)
        self._layer, self._rate = layer, factory.config.hidden_dropout
        self._tp, self._sequence_parallel = factory.ctx.tp, factory.sequence_parallel
        self._parallel = factory.config.use_parallel_residual
        self._recompute = factory.recompute.modules

    def forward(
        self, x: torch.Tensor, inputs: AttentionInputs, seq_length: int, keeping: Keeping = AS_IT_IS
    ) -> torch.Tensor:
        """x [s, b, h] (or [s/tp, b, h]) to the same shape; `seq_length` is the whole s; `keeping`: of saved tensors."""
        positions = local_positions(seq_length, self._tp, self._sequence_parallel)

        def dropped(branch: torch.Tensor, place: str) -> torch.Tensor:
            return hidden_dropout(branch, self._rate, inputs.dropout, self._layer, place, positions, seq_length)

        attended = self._normed(self.attention_norm, lambda y: self.attention(y, inputs), x, keeping)
        middle = x + dropped(attended, "attention_output")
        projected = self._normed(self.mlp_norm, self._mlp, x if self._parallel else middle, keeping)
        return middle + dropped(projected, "mlp_output")

    def _normed(
        self, norm: Norm, branch: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, keeping: Keeping
    ) -> torch.Tensor:
        """branch(norm(x))."""
        normed = norm(x)
        if "layernorm" not in self._recompute:
            return branch(normed)
        with remade(normed, norm, x, keeping):
            return branch(normed)

    def _mlp(self, normed: torch.Tensor) -> torch.Tensor:
        if "mlp" in self._recompute:
            return recomputed(self.mlp, normed)
        projected: torch.Tensor = self.mlp(normed)
        return projected
