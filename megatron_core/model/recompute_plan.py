# SPDX-License-Identifier: Apache-2.0
"""Which activations a chunk computes again in backward; how is `recompute.py`'s matter.

Bytes that one microbatch leaves between forward and backward in 16 bits, by layer (Korthikanti et al. 2022, table 2;
s sequence, b microbatch, h hidden, a heads, t tensor-parallel size, with sequence parallelism):

    nothing recomputed       sbh/t (34 + 5 as/h)
    selective, core_attn     sbh/t 34               without flash attention, which keeps no scores in the first place
    full, uniform, N         sbh/t 2/N              the input [s/t, b, h] of each group of N layers

Without sequence parallelism that input is whole on every rank: 2 sbh.
"""

from dataclasses import dataclass
from typing import Literal

from megatron_core.config.parallel import ParallelConfig


@dataclass(frozen=True)
class LayerGroup:
    """Layers of a chunk, counted from its first one, that run as one."""

    layers: range
    recomputed: bool


@dataclass(frozen=True, kw_only=True)
class RecomputePlan:
    """What a run recomputes. By default nothing."""

    method: Literal["uniform", "block"] | None = None
    """How whole layers are chosen; None: there are none."""
    num_layers: int = 1
    """uniform: layers a group; block: layers of each chunk that are recomputed, each by itself."""
    modules: frozenset[str] = frozenset()
    """Parts of every layer: core_attn, mlp, layernorm."""

    @staticmethod
    def of(config: ParallelConfig) -> "RecomputePlan":
        """What a resolved config asks for."""
        match config.recompute_granularity:
            case "full":
                assert config.recompute_method and config.recompute_num_layers, "a resolved run has both"
                return RecomputePlan(method=config.recompute_method, num_layers=config.recompute_num_layers)
            case "selective":
                return RecomputePlan(modules=frozenset(config.recompute_modules))
        return RecomputePlan()

    def groups(self, count: int) -> tuple[LayerGroup, ...]:
        """The groups, in order, of a chunk of `count` layers."""
        match self.method:
            case "uniform":
                n = self.num_layers
                return tuple(LayerGroup(range(at, min(at + n, count)), True) for at in range(0, count, n))
            case "block":
                # Megatron's meaning: the first of every chunk, so that a rank of v chunks recomputes v times as many.
                return tuple(LayerGroup(range(at, at + 1), at < self.num_layers) for at in range(count))
        return tuple(LayerGroup(range(at, at + 1), False) for at in range(count))
