# SPDX-License-Identifier: Apache-2.0
"""GPT: embedding, layers, head; any consecutive part of it is a chunk that a pipeline stage can hold.

GPT-2/GPT-3/MT-NLG and Llama are settings of ModelConfig. The model knows its context (which slice of each matrix it
holds) but nothing of the run: no optimizer, data, schedule or flag.
"""

from dataclasses import dataclass

import torch
from torch import nn

from megatron_core.attention.core import document_mask
from megatron_core.attention.rotary import rotary_table
from megatron_core.attention.self_attention import AttentionInputs
from megatron_core.model.block import Block
from megatron_core.model.embedding import Embedding, vocabulary_weight
from megatron_core.model.head import Head
from megatron_core.model.microbatch import Microbatch
from megatron_core.model.parameters import ParameterFactory

EMBEDDING_NAME = "embedding.tokens.weight"
HEAD_NAME = "head.weight"


@dataclass(frozen=True)
class ChunkPlan:
    """Which part of the model a chunk is."""

    layers: range
    has_embedding: bool = True
    has_head: bool = True


class GPTChunk(nn.Module):
    """The layers of one virtual pipeline stage, with the embedding before the first and the head after the last."""

    def __init__(self, factory: ParameterFactory, plan: ChunkPlan) -> None:
        super().__init__()
        config = factory.config
        tied = not config.untie_embeddings_and_output_weights
        alone = plan.has_embedding and plan.has_head
        self.embedding = self.head = None
        weight = None
        if plan.has_embedding:
            weight = vocabulary_weight(
                factory, EMBEDDING_NAME, tied=tied and not alone, counted=True, gradients=2 if tied and alone else 1
            )
            self.embedding = Embedding(factory, weight)
        self.layers = nn.ModuleList(Block(factory, layer) for layer in plan.layers)
        if plan.has_head:
            if not tied:
                weight = vocabulary_weight(factory, HEAD_NAME, tied=False, counted=True, gradients=1)
            elif weight is None:
                weight = vocabulary_weight(factory, EMBEDDING_NAME, tied=True, counted=False, gradients=1)
            self.head = Head(factory, weight)
        self._config = config

    def forward(self, hidden: torch.Tensor | None, batch: Microbatch) -> torch.Tensor:
        """The next chunk's input [s, b, h] (or [s/tp, b, h]), or from the last chunk each token's loss [b, s].

        `hidden` is the previous chunk's output; None for the first chunk, which embeds the batch's tokens.
        """
        x = self.residual_stream(hidden, batch)
        if self.head is None:
            return x
        assert batch.labels is not None, "the last stage needs labels"
        losses: torch.Tensor = self.head(x, batch.labels)
        return losses

    def residual_stream(self, hidden: torch.Tensor | None, batch: Microbatch) -> torch.Tensor:
        """Everything but the head."""
        if self.embedding is not None:
            x = self.embedding(batch)
        else:
            assert hidden is not None, "a chunk without embedding needs the previous chunk's output"
            x = hidden
        inputs = self._attention_inputs(batch, x.dtype)
        for layer in self.layers:
            x = layer(x, inputs, batch.seq_length)
        return x

    def _attention_inputs(self, batch: Microbatch, dtype: torch.dtype) -> AttentionInputs:
        rotary = None
        if self._config.position_embedding_type == "rope":
            rotary = rotary_table(self._config, batch.position_ids, dtype)
        mask = None if batch.document_ids is None else document_mask(batch.document_ids)
        return AttentionInputs(rotary, mask, batch.dropout)
