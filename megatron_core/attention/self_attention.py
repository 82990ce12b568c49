# SPDX-License-Identifier: Apache-2.0
"""Causal self-attention of one tp rank's heads (Vaswani et al. 2017; grouped queries: Ainslie et al. 2023).

Letters: s sequence, b microbatch, a query heads and g key/value heads of this rank, d head dim. The two projections
come from outside, so that this file says nothing about how parameters are made or cut.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from megatron_core.attention.core import attend, attend_with_dropout
from megatron_core.attention.rotary import RotaryTable, apply_rotary
from megatron_core.config.model import ModelConfig
from megatron_core.kernels.dropout import DropoutKey, attention_keep_mask


class EarlierTokens(Protocol):
    """Keys and values of tokens that went through the model before (see inference/kv_cache.py)."""

    @property
    def mask(self) -> torch.Tensor | None:
        """Which keys each query may see, [b, 1, s, slots] bool; None: plainly causal, nothing went before."""
        ...

    def joined(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep k and v [b, g, s, d] of a layer; all that this forward attends to, [b, g, slots, d]."""
        ...


@dataclass(frozen=True)
class AttentionInputs:
    """What all layers of a chunk share for one microbatch."""

    rotary: RotaryTable | None
    mask: torch.Tensor | None
    """[b, 1, s, s], True where a query may look; None: plainly causal."""
    dropout: DropoutKey | None
    earlier: EarlierTokens | None = None
    """None: the sequence is whole (training)."""


class SelfAttention(nn.Module):
    """Queries, keys and values from one column-parallel linear, the output through a row-parallel one."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        heads: range,
        qkv: nn.Module,
        output: nn.Module,
        q_norm: nn.Module | None,
        k_norm: nn.Module | None,
        run_core: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        """`heads`: global numbers of this rank's query heads; `layer`: global number, from 0; `run_core`: calls the
        core (its first argument) with what follows, in place of a plain call."""
        super().__init__()
        self.qkv, self.output, self.q_norm, self.k_norm = qkv, output, q_norm, k_norm
        self._layer, self._heads, self._d = layer, heads, config.head_dim
        self._run_core = run_core
        self._dropout = config.attention_dropout
        # Query-key layer scaling divides scores by l before they can overflow fp16 and undoes it inside the softmax.
        self._pre_scale = 1.0 / (layer + 1) if config.apply_query_key_layer_scaling else 1.0
        self._scale = 1.0 / (math.sqrt(config.head_dim) * self._pre_scale)

    def forward(self, x: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """x [s, b, h] (or [s/tp, b, h]) to the same shape."""
        q, kv = self.qkv(x)
        s, b = q.shape[:2]
        q = q.view(s, b, -1, self._d)
        kv = kv.view(s, b, -1, 2, self._d)
        k, v = kv[..., 0, :], kv[..., 1, :]  # [s, b, g, d]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if inputs.rotary is not None:
            q, k = apply_rotary(q, inputs.rotary), apply_rotary(k, inputs.rotary)
        if self._pre_scale != 1.0:
            q = q * self._pre_scale
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))  # [b, heads, s, d]
        if inputs.earlier is not None:
            k, v = inputs.earlier.joined(self._layer, k, v)
        out = self._core(q, k, v, inputs) if self._run_core is None else self._run_core(self._core, q, k, v, inputs)
        projected: torch.Tensor = self.output(out.permute(2, 0, 1, 3).reshape(s, b, -1))
        return projected

    def _core(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, inputs: AttentionInputs) -> torch.Tensor:
        """Scores, softmax, dropout and weighted values: q [b, a, s, d]; k, v [b, g, s, d] to [b, a, s, d]."""
        if inputs.dropout is not None and self._dropout > 0.0:
            keep = attention_keep_mask(inputs.dropout, self._dropout, self._layer, self._heads, q)
            return attend_with_dropout(q, k, v, inputs.mask, self._scale, keep, self._dropout)
        return attend(q, k, v, inputs.mask, self._scale)
