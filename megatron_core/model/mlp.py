# SPDX-License-Identifier: Apache-2.0
"""The MLP of a layer: up-projection cut along its width f, activation, down-projection back to h.

A gated MLP keeps gate and up apart as the first dim of one weight [2, f, h], so that a cut along f is one slice and a
rank's gate and up columns always belong together.
"""

import torch
import torch.nn.functional as F
from torch import nn

from megatron_core.model.parameters import ParameterFactory
from megatron_core.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from megatron_core.tensor_parallel.shard_spec import cut_spec


class MLP(nn.Module):
    """h -> f -> h with GELU, squared ReLU or SwiGLU (Shazeer 2020)."""

    def __init__(self, factory: ParameterFactory, layer: int) -> None:
        super().__init__()
        config, ctx = factory.config, factory.ctx
        h, f = config.hidden_size, config.ffn_size
        name = f"layers.{layer}.mlp"
        self._activation = config.activation
        gated = self._activation == "swiglu"
        up_shape, up_dim = ((2, f, h), 1) if gated else ((f, h), 0)
        up_weight = factory.weight(cut_spec(f"{name}.up.weight", up_shape, up_dim, ctx))
        up_bias = factory.column_bias(f"{name}.up.bias", up_shape[:-1], up_dim) if config.add_bias_linear else None
        down_spec = cut_spec(f"{name}.down.weight", (h, f), 1, ctx)
        down_bias = factory.row_bias(f"{name}.down.bias") if config.add_bias_linear else None
        sequence_parallel, queue = factory.sequence_parallel, factory.queue
        self.up = ColumnParallelLinear([up_weight], [up_bias], ctx.tp, sequence_parallel, queue)
        self.down = RowParallelLinear(
            factory.weight(down_spec, factory.output_std), down_bias, ctx.tp, sequence_parallel, queue
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [s, b, h] (or [s/tp, b, h]) to the same shape."""
        (up,) = self.up(x)  # [s, b, f/tp] or, gated, [s, b, 2 f/tp]: gate first
        match self._activation:
            case "swiglu":
                gate, value = up.chunk(2, dim=-1)
                active = F.silu(gate) * value
            case "squared_relu":
                active = F.relu(up).square()
            case "gelu_tanh":
                active = F.gelu(up, approximate="tanh")
            case "gelu_exact":
                active = F.gelu(up)
        projected: torch.Tensor = self.down(active)
        return projected
