# SPDX-License-Identifier: Apache-2.0
"""Which positions a rank's activations hold, and the learned position table."""

import torch
import torch.nn.functional as F
from torch import nn

from megatron_core.model.parameters import ParameterFactory
from megatron_core.parallel.context import Group
from megatron_core.tensor_parallel.shard_spec import even_slice, replicated_spec


def local_positions(seq_length: int, tp: Group, sequence_parallel: bool) -> range:
    """Positions of the sequence whose activations this rank holds outside tensor-parallel regions."""
    return range(*even_slice(seq_length, tp)) if sequence_parallel else range(seq_length)


class LearnedPositions(nn.Module):
    """A table of max_position_embeddings rows; under sequence parallelism each rank looks up its own positions."""

    def __init__(self, factory: ParameterFactory) -> None:
        super().__init__()
        config = factory.config
        shape = (config.max_position_embeddings, config.hidden_size)
        self.weight = factory.weight(
            replicated_spec(
                "embedding.positions.weight", shape, factory.ctx, partial=factory.sequence_parallel, decayed=True
            )
        )

    def forward(self, position_ids: torch.Tensor) -> torch.Tensor:
        """position_ids [b or 1, s_local] to [s_local, b or 1, h]."""
        return F.embedding(position_ids.t(), self.weight)
