# SPDX-License-Identifier: Apache-2.0
"""From the residual stream to the loss: final norm, logits over the vocabulary cut by tp, cross-entropy."""

import torch
from torch import nn

from megatron_core.model.norm import Norm
from megatron_core.model.parameters import ParameterFactory
from megatron_core.tensor_parallel.linear import ColumnParallelLinear
from megatron_core.tensor_parallel.shard_spec import SpecParameter
from megatron_core.tensor_parallel.vocab import vocab_slice
from megatron_core.tensor_parallel.vocab_cross_entropy import vocab_parallel_cross_entropy


class Head(nn.Module):
    """The last thing in the last stage. Its weight is its own, or the embedding's."""

    def __init__(self, factory: ParameterFactory, weight: SpecParameter) -> None:
        super().__init__()
        config = factory.config
        self.norm = Norm(factory, "final_norm", config.hidden_size)
        self.linear = ColumnParallelLinear([weight], [None], factory.ctx.tp, factory.sequence_parallel, factory.queue)
        self._piece, self._vocabulary = vocab_slice(config, factory.ctx.tp), config.vocabulary
        self._tp, self._z_loss_coeff = factory.ctx.tp, config.z_loss_coeff

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x [s, b, h] (or [s/tp, b, h]) to this rank's logits [s, b, v_padded/tp]; padding columns are meaningless."""
        (logits,) = self.linear(self.norm(x))
        result: torch.Tensor = logits
        return result

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of each token, at least in fp32: [b, s] for labels [b, s]. z-loss counts in training alone."""
        logits = self.logits(x)
        losses = vocab_parallel_cross_entropy(
            logits.view(-1, logits.shape[-1]),
            labels.t().reshape(-1),
            self._piece,
            self._vocabulary,
            self._tp,
            z_loss_coeff=self._z_loss_coeff if torch.is_grad_enabled() else 0.0,
        )
        return losses.view(logits.shape[:2]).t()
