# SPDX-License-Identifier: Apache-2.0
"""GPT: embedding, layers, head; any consecutive part of it is a chunk that a pipeline stage can hold.

GPT-2/GPT-3/MT-NLG and Llama are settings of ModelConfig. The model knows its context (which slice of each matrix it
holds) but nothing of the run: no optimizer, data, schedule or flag.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

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
from megatron_core.model.recompute import AS_IT_IS, Keeping, recomputed
from megatron_core.model.recompute_plan import LayerGroup
from megatron_core.tensor_parallel.shard_spec import SpecParameter

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

    def __init__(
        self,
        factory: ParameterFactory,
        plan: ChunkPlan,
        embedding_weight: SpecParameter | None,
        head_weight: SpecParameter | None,
    ) -> None:
        """The two tables come from `build_chunks`; each is needed where the plan has the part that uses it."""
        super().__init__()
        self.embedding = self.head = None
        if plan.has_embedding:
            assert embedding_weight is not None, "a chunk with the embedding needs its table"
            self.embedding = Embedding(factory, embedding_weight)
        self.layers = nn.ModuleList(Block(factory, layer) for layer in plan.layers)
        if plan.has_head:
            assert head_weight is not None, "a chunk with the head needs its weight"
            self.head = Head(factory, head_weight)
        self._config = factory.config
        self._groups = factory.recompute.groups(len(plan.layers))
        self._offload = factory.offload
        self._offloaded_parameters = list(self.layers[: self._offload.num_layers].parameters())

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
        passage = self._offload.passage(self._staying(inputs, hidden))
        for group in self._groups:
            run = partial(self._run, group, x, inputs, batch.seq_length)
            x = passage.through(group.layers.start, run)
        passage.finish()
        return x

    def _run(
        self, group: LayerGroup, x: torch.Tensor, inputs: AttentionInputs, seq_length: int, keeping: Keeping
    ) -> torch.Tensor:
        if group.recomputed:
            return recomputed(self._through, group.layers, x, inputs, seq_length)
        return self._through(group.layers, x, inputs, seq_length, keeping)

    def _through(
        self,
        layers: range,
        x: torch.Tensor,
        inputs: AttentionInputs,
        seq_length: int,
        keeping: Keeping = AS_IT_IS,
    ) -> torch.Tensor:
        for number in layers:
            x = self.layers[number](x, inputs, seq_length, keeping)
        return x

    def _staying(self, inputs: AttentionInputs, hidden: torch.Tensor | None) -> Iterator[torch.Tensor]:
        """What offloaded layers save that lives on anyway: parameters, what all layers share, and the chunk's input,
        which the pipeline holds to take its gradient from."""
        yield from self._offloaded_parameters
        if inputs.rotary is not None:
            yield from (inputs.rotary.cos, inputs.rotary.sin)
        yield from (tensor for tensor in (inputs.mask, hidden) if tensor is not None)

    def _attention_inputs(self, batch: Microbatch, dtype: torch.dtype) -> AttentionInputs:
        rotary = None
        if self._config.position_embedding_type == "rope":
            rotary = rotary_table(self._config, batch.position_ids, dtype)
        mask = None if batch.document_ids is None else document_mask(batch.document_ids)
        if batch.earlier is not None:
            mask = batch.earlier.mask
        return AttentionInputs(rotary, mask, batch.dropout, batch.earlier)


def build_chunks(factory: ParameterFactory, plans: Sequence[ChunkPlan]) -> list[GPTChunk]:
    """The chunks that one rank holds. A tied table is one parameter where both its uses are here, else a copy at each
    end of the pipeline, of which the first stage's counts."""
    embeds, heads = any(plan.has_embedding for plan in plans), any(plan.has_head for plan in plans)
    embedding_weight = head_weight = None
    if factory.config.untie_embeddings_and_output_weights:
        embedding_weight = vocabulary_weight(factory, EMBEDDING_NAME) if embeds else None
        head_weight = vocabulary_weight(factory, HEAD_NAME) if heads else None
    elif embeds or heads:
        both = embeds and heads
        embedding_weight = head_weight = vocabulary_weight(
            factory, EMBEDDING_NAME, tied=not both, counted=embeds, gradients=2 if both else 1
        )
    return [GPTChunk(factory, plan, embedding_weight, head_weight) for plan in plans]
