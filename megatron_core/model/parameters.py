# SPDX-License-Identifier: Apache-2.0
"""ParameterFactory: makes the parameters of one rank's model, each from its global name, shape and cut.

It holds what all layers share (context, seed, dtype, sequence parallelism, recomputation, offload), so that they state
only what a parameter is. Row-parallel biases need no special care under sequence parallelism: their gradient is taken
from the gathered output gradient (see `tensor_parallel/linear.py`); norms see a part of the sequence each and are
partial.
"""

from dataclasses import dataclass, field

import torch

from megatron_core.config.model import ModelConfig
from megatron_core.model.activation_offload import ActivationOffload
from megatron_core.model.init import normal
from megatron_core.model.recompute_plan import RecomputePlan
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import (
    ShardSpec,
    SpecParameter,
    cut_spec,
    make_parameter,
    replicated_spec,
)
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue


@dataclass(frozen=True)
class ParameterFactory:
    """Makes parameters for one rank."""

    config: ModelConfig
    ctx: ParallelContext
    queue: WeightGradientQueue
    seed: int | None
    """Of the initial weights; None: they are zero until they are loaded."""
    dtype: torch.dtype
    sequence_parallel: bool
    recompute: RecomputePlan = field(default_factory=RecomputePlan)
    offload: ActivationOffload = field(default_factory=ActivationOffload)

    @property
    def output_std(self) -> float:
        """Standard deviation of projections onto the residual stream (Radford et al. 2019: 1/sqrt(2 L))."""
        return self.config.init_method_std / (2 * self.config.num_layers) ** 0.5

    def weight(self, spec: ShardSpec, std: float | None = None, rows: int | None = None) -> SpecParameter:
        """A normal weight; `rows` pads its first dim with zeros (vocabulary padding)."""
        if self.seed is None:
            shape = spec.local_shape if rows is None else (rows, *spec.local_shape[1:])
            return make_parameter(torch.zeros(shape, dtype=self.dtype, device=self.ctx.device), spec)
        std = self.config.init_method_std if std is None else std
        data = normal(spec, std, self.seed, dtype=self.dtype, rows=rows)
        return make_parameter(data.to(self.ctx.device), spec)

    def constant(self, spec: ShardSpec, value: float) -> SpecParameter:
        """A weight or bias that starts at one value."""
        data = torch.full(spec.local_shape, value, dtype=self.dtype, device=self.ctx.device)
        return make_parameter(data, spec)

    def column_bias(self, name: str, shape: tuple[int, ...], dim: int) -> SpecParameter:
        """Bias of a column-parallel linear: cut like its output."""
        return self.constant(cut_spec(name, shape, dim, self.ctx, decayed=False), 0.0)

    def row_bias(self, name: str) -> SpecParameter:
        """Bias of a row-parallel linear: whole on every rank, with a complete gradient."""
        return self.constant(replicated_spec(name, (self.config.hidden_size,), self.ctx), 0.0)
