# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and RMSNorm, replicated over tp. Epsilon stands under the root, beside the mean square or variance."""

import torch
import torch.nn.functional as F
from torch import nn

from megatron_core.model.parameters import ParameterFactory
from megatron_core.parallel.fake_memory import is_fake
from megatron_core.tensor_parallel.shard_spec import replicated_spec


class Norm(nn.Module):
    """Normalise the last dim: (x - mean) / sqrt(var + eps) * weight + bias, or x / sqrt(mean(x^2) + eps) * weight."""

    def __init__(self, factory: ParameterFactory, name: str, size: int, *, partial: bool | None = None) -> None:
        """`partial`: each tp rank sees only part of the inputs; unset: so exactly under sequence parallelism."""
        super().__init__()
        config, ctx = factory.config, factory.ctx
        partial = factory.sequence_parallel if partial is None else partial
        self._eps, self._size = config.norm_epsilon, (size,)
        self.weight = factory.constant(replicated_spec(f"{name}.weight", (size,), ctx, partial=partial), 1.0)
        self.bias = None
        if config.normalization == "LayerNorm":
            self.bias = factory.constant(replicated_spec(f"{name}.bias", (size,), ctx, partial=partial), 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size] to the same shape and dtype; statistics are taken in at least fp32."""
        # A CPU has no fused RMSNorm. A dry run, which stands for a GPU, takes the norm that keeps as much as that.
        if self.bias is None and not is_fake(x):
            return F.rms_norm(x, self._size, self.weight, self._eps)
        return F.layer_norm(x, self._size, self.weight, self.bias, self._eps)
