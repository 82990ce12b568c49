# SPDX-License-Identifier: Apache-2.0
"""Megatron's parameters of a model, whole, and where in them ours lie. Pure; used in both directions.

Names are those of Megatron core's torch_dist checkpoints with the layer's global number; shapes have no layout but the
padding of the vocabulary. Letters: a query heads, g groups, d head dim, h hidden size, f width of the MLP.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.config.model import ModelConfig

EMBEDDING = "embedding.word_embeddings.weight"
HEAD = "output_layer.weight"

Cut = Literal["rows", "halves", "columns", "none"]
"""What tensor parallelism cuts: dim 0; dim 0 of each half (gate and up); dim 1; nothing."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of our tensors as equal blocks of rows of one of theirs: block i begins at row first + i · step."""

    name: str
    shape: tuple[int, ...]
    blocks: int = 1
    first: int = 0
    step: int = 0

    def matrix_shape(self, width: tuple[int, ...]) -> tuple[int, ...]:
        """Our tensor as [blocks, rows, *width], a view of it."""
        return (self.blocks, math.prod(self.shape) // (self.blocks * math.prod(width)), *width)

    def rectangles(self, width: tuple[int, ...]) -> Iterator[Rectangle]:
        """Where each block lies in theirs."""
        rows = self.matrix_shape(width)[1]
        for block in range(self.blocks):
            start = self.first + block * self.step
            yield Rectangle((start, *[0] * len(width)), (start + rows, *width))


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One of Megatron's parameters."""

    name: str
    shape: tuple[int, ...]
    cut: Cut
    parts: tuple[Part, ...]

    @property
    def width(self) -> tuple[int, ...]:
        """Extents behind the rows: empty for a bias or a norm."""
        return self.shape[1:]

    @property
    def whole(self) -> bool:
        """Whether every tensor-parallel rank holds all of it."""
        return self.cut == "none"

    def shard(self, tp: int, rank: int) -> list[Rectangle]:
        """What tensor-parallel rank `rank` of `tp` holds of it, one below the other."""
        everything = whole(self.shape)
        if self.whole:
            return [everything]
        if self.cut == "columns":
            n = self.shape[1] // tp
            return [everything.rows(1, rank * n, (rank + 1) * n)]
        halves = 2 if self.cut == "halves" else 1
        n = self.shape[0] // (halves * tp)
        starts = [half * self.shape[0] // halves + rank * n for half in range(halves)]
        return [everything.rows(0, start, start + n) for start in starts]

    def divides_by(self, tp: int) -> bool:
        """Whether so many ranks can hold equal shards."""
        dim = 1 if self.cut == "columns" else 0
        return self.whole or self.shape[dim] % (tp * (2 if self.cut == "halves" else 1)) == 0


def parameters(config: ModelConfig, padded_vocab_size: int) -> list[Parameter]:
    """All of them, in the order of the model; that of a tied head is the embedding's and not among them."""
    h = config.hidden_size
    table = Part(name="embedding.tokens.weight", shape=(config.vocabulary, h))
    found = [Parameter(name=EMBEDDING, shape=(padded_vocab_size, h), cut="rows", parts=(table,))]
    if config.position_embedding_type == "learned_absolute":
        shape = (config.max_position_embeddings, h)
        found.append(_alike("embedding.position_embeddings.weight", "embedding.positions.weight", shape))
    for layer in range(config.num_layers):
        found += _layer(config, f"decoder.layers.{layer}", f"layers.{layer}")
    found += _norm(config, "decoder.final_layernorm", "final_norm", h)
    if config.untie_embeddings_and_output_weights:
        head = Part(name="head.weight", shape=(config.vocabulary, h))
        found.append(Parameter(name=HEAD, shape=(padded_vocab_size, h), cut="rows", parts=(head,)))
    return found


def _layer(config: ModelConfig, theirs: str, ours: str) -> list[Parameter]:
    h, f, d, a = config.hidden_size, config.ffn_size, config.head_dim, config.num_attention_heads
    biased = config.add_bias_linear
    attention, mlp = f"{theirs}.self_attention", f"{theirs}.mlp"
    found = _norm(config, f"{theirs}.input_layernorm", f"{ours}.attention_norm", h)
    found += _qkv(config, f"{attention}.linear_qkv.weight", f"{ours}.attention", "weight", (h,))
    if biased or config.add_qkv_bias:
        found += _qkv(config, f"{attention}.linear_qkv.bias", f"{ours}.attention", "bias", ())
    if config.qk_layernorm:
        for name in ("q", "k"):
            found += _norm(config, f"{attention}.{name}_layernorm", f"{ours}.attention.{name}_norm", d)
    output, fc1, fc2 = f"{attention}.linear_proj", f"{mlp}.linear_fc1", f"{mlp}.linear_fc2"
    part = Part(name=f"{ours}.attention.output.weight", shape=(h, a, d))
    found.append(Parameter(name=f"{output}.weight", shape=(h, a * d), cut="columns", parts=(part,)))
    found += [_alike(f"{output}.bias", f"{ours}.attention.output.bias", (h,))] if biased else []
    found += _norm(config, f"{theirs}.pre_mlp_layernorm", f"{ours}.mlp_norm", h)
    found.append(_up(config, f"{fc1}.weight", f"{ours}.mlp.up.weight", (h,)))
    found += [_up(config, f"{fc1}.bias", f"{ours}.mlp.up.bias", ())] if biased else []
    part = Part(name=f"{ours}.mlp.down.weight", shape=(h, f))
    found.append(Parameter(name=f"{fc2}.weight", shape=(h, f), cut="columns", parts=(part,)))
    found += [_alike(f"{fc2}.bias", f"{ours}.mlp.down.bias", (h,))] if biased else []
    return found


def _qkv(config: ModelConfig, theirs: str, ours: str, kind: str, width: tuple[int, ...]) -> list[Parameter]:
    """Group by group: its query heads, its key, its value."""
    a, g, d = config.num_attention_heads, config.query_groups, config.head_dim
    queries, step = a // g * d, (a // g + 2) * d
    parts = (
        Part(name=f"{ours}.q.{kind}", shape=(a, d, *width), blocks=g, first=0, step=step),
        Part(name=f"{ours}.kv.{kind}", shape=(g, 2, d, *width), blocks=g, first=queries, step=step),
    )
    return [Parameter(name=theirs, shape=(g * step, *width), cut="rows", parts=parts)]


def _up(config: ModelConfig, theirs: str, ours: str, width: tuple[int, ...]) -> Parameter:
    """One matrix, or with SwiGLU gate above up."""
    f = config.ffn_size
    if config.swiglu:
        part = Part(name=ours, shape=(2, f, *width))
        return Parameter(name=theirs, shape=(2 * f, *width), cut="halves", parts=(part,))
    return Parameter(name=theirs, shape=(f, *width), cut="rows", parts=(Part(name=ours, shape=(f, *width)),))


def _norm(config: ModelConfig, theirs: str, ours: str, size: int) -> list[Parameter]:
    kinds: Sequence[str] = ("weight", "bias") if config.normalization == "LayerNorm" else ("weight",)
    return [_alike(f"{theirs}.{kind}", f"{ours}.{kind}", (size,)) for kind in kinds]


def _alike(theirs: str, ours: str, shape: tuple[int, ...]) -> Parameter:
    """The same tensor on both sides, whole on every rank."""
    return Parameter(name=theirs, shape=shape, cut="none", parts=(Part(name=ours, shape=shape),))
