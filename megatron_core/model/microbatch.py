# SPDX-License-Identifier: Apache-2.0
"""What the model is given of one microbatch. A stage that neither embeds nor computes a loss needs positions alone."""

from dataclasses import dataclass

import torch

from megatron_core.attention.self_attention import EarlierTokens
from megatron_core.kernels.dropout import DropoutKey


@dataclass(frozen=True, kw_only=True)
class Microbatch:
    """b samples of s tokens. Fields that a stage does not need may be None."""

    position_ids: torch.Tensor
    """[b, s], or [1, s] when all samples share them."""
    tokens: torch.Tensor | None = None
    """[b, s] int64, for the embedding."""
    labels: torch.Tensor | None = None
    """[b, s] int64, for the loss."""
    loss_mask: torch.Tensor | None = None
    """[b, s] bool: which labels count."""
    document_ids: torch.Tensor | None = None
    """[b, s]: attention stays within equal numbers; None: within the whole sample."""
    dropout: DropoutKey | None = None
    """Names the dropout streams; None: no dropout (evaluation)."""
    earlier: EarlierTokens | None = None
    """Of generation: the tokens before these; None: the samples are whole."""

    @property
    def seq_length(self) -> int:
        """Tokens per sample s."""
        return self.position_ids.shape[1]
