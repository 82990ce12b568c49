# SPDX-License-Identifier: Apache-2.0
"""From token ids to the residual stream: tokens, BLOOM's norm, GLM's gradient shrink, positions, dropout."""

import torch
from torch import nn

from megatron_core.kernels.dropout import hidden_dropout
from megatron_core.model.microbatch import Microbatch
from megatron_core.model.norm import Norm
from megatron_core.model.parameters import ParameterFactory
from megatron_core.model.positions import LearnedPositions, local_positions
from megatron_core.tensor_parallel.embedding import VocabParallelEmbedding
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter
from megatron_core.tensor_parallel.vocab import VocabSlice, vocab_slice

_BEFORE_LAYER_0 = -1


def vocabulary_weight(
    factory: ParameterFactory, name: str, *, tied: bool = False, counted: bool = True, gradients: int = 1
) -> SpecParameter:
    """A [v, h] table cut along the vocabulary, stored with this layout's padding rows, which are zero."""
    piece = vocab_slice(factory.config, factory.ctx.tp)
    spec = ShardSpec(
        name=name,
        shape=(factory.config.vocabulary, factory.config.hidden_size),
        dim=0,
        start=piece.start,
        stop=piece.stop,
        counted=counted,
        tied=tied,
        gradients=gradients,
    )
    return factory.weight(spec, rows=piece.rows)


class Embedding(nn.Module):
    """The first thing in the first stage."""

    def __init__(self, factory: ParameterFactory, weight: SpecParameter) -> None:
        super().__init__()
        config = factory.config
        piece: VocabSlice = vocab_slice(config, factory.ctx.tp)
        self.tokens = VocabParallelEmbedding(weight, piece, factory.ctx.tp, factory.sequence_parallel)
        self.norm = Norm(factory, "embedding.norm", config.hidden_size) if config.embed_layernorm else None
        learned = config.position_embedding_type == "learned_absolute"
        self.positions = LearnedPositions(factory) if learned else None
        self._shrink, self._rate = config.embedding_gradient_shrink, config.hidden_dropout
        self._tp, self._sequence_parallel = factory.ctx.tp, factory.sequence_parallel

    def forward(self, batch: Microbatch) -> torch.Tensor:
        """The residual stream [s, b, h] (or [s/tp, b, h]) of a microbatch."""
        assert batch.tokens is not None, "the first stage needs tokens"
        x = self.tokens(batch.tokens.t())
        if self._shrink != 1.0 and x.requires_grad:
            shrink = self._shrink
            x.register_hook(lambda grad: grad * shrink)
        if self.norm is not None:
            x = self.norm(x)
        local = local_positions(batch.seq_length, self._tp, self._sequence_parallel)
        if self.positions is not None:
            x = x + self.positions(batch.position_ids[:, local.start : local.stop])
        return hidden_dropout(x, self._rate, batch.dropout, _BEFORE_LAYER_0, "embedding", local, batch.seq_length)
