# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint of any layout to a model of this one that answers.

Architecture and tokenizer come from the manifest, which may be anybody's: before weights take memory, all that it says
is checked, and its tensors against the model that it describes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from megatron_core.checkpoint.agree import union_of_shapes
from megatron_core.checkpoint.choose import Chosen, Source, choose
from megatron_core.checkpoint.held import Held, held_parts
from megatron_core.checkpoint.list_steps import split_step_path
from megatron_core.checkpoint.load import load_tensors, require_fit
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.saved_config import config_from_json
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import model_violations
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.null_tokenizer import NullTokenizer
from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import CheckpointError, ConfigError, DataError
from megatron_core.inference.model import InferenceModel
from megatron_core.model.gpt import EMBEDDING_NAME, ChunkPlan, GPTChunk, build_chunks
from megatron_core.model.parameters import ParameterFactory
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.partition import partition
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """A checkpoint's model, its weights loaded, and where it came from."""

    model: InferenceModel
    manifest: Manifest
    data: DataConfig
    """Names the tokenizer."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The one that the model was trained with. Raises DataError where its files are not there any more."""
        return tokenizer_of(self.data, self.model.config)


def open_model(
    path: Path, ctx: ParallelContext, *, dtype: torch.dtype | None = None, tokenizer_model: str | None = None
) -> OpenModel:
    """The model in `path`, a step_* directory or that of a run (its newest usable step), cut as `ctx` says.

    dtype: of weights and activations; None: as stored. `tokenizer_model`: where the tokenizer's files are now, if not
    where they were. All ranks must call. Raises CheckpointError where there is no usable checkpoint or it does not hold
    what it says, ConfigError where the layout does not fit the model or `tokenizer_model` is of no use; the same on
    every rank.
    """
    root, step = split_step_path(path)
    chosen = choose(Source(root=root, step=step), ctx)
    if chosen is None:
        raise CheckpointError(f"{path} holds no checkpoint")
    return open_chosen(chosen, ctx, dtype=dtype, tokenizer_model=tokenizer_model)


def open_chosen(
    chosen: Chosen,
    ctx: ParallelContext,
    *,
    dtype: torch.dtype | None = None,
    rounded_to: torch.dtype | None = None,
    packed: bool = True,
    tokenizer_model: str | None = None,
) -> OpenModel:
    """As `open_model`, of a checkpoint that may not be published yet: its manifest need not be on the disk.

    rounded_to: round weights to this dtype first, as a copy of them was that they are compared with. `packed`: weights
    in blocks, faster and rounded otherwise than a plain product.
    """
    saved = config_from_json(chosen.manifest.config)
    data = saved.data if tokenizer_model is None else _moved(saved.data, tokenizer_model)
    config = _checked_model(chosen.manifest, saved.model, ctx)
    dtype = dtype or _stored_dtype(chosen.manifest)
    planned = _held(_build(config, replace(ctx, device=torch.device("meta")), dtype))
    require_fit(chosen.manifest, union_of_shapes({part.name: part.shape for part in planned}, ctx), with_optim=False)
    chunk = _build(config, ctx, dtype)
    loaded = load_tensors(chosen, _held(chunk), ctx, with_optim=False)
    if rounded_to is not None:
        round_weights(chunk, rounded_to)
    model = InferenceModel(config, ctx, [chunk], dtype)
    if packed:
        model.pack_weights()
    return OpenModel(model=model, manifest=loaded.manifest, data=data)


def _moved(data: DataConfig, tokenizer_model: str) -> DataConfig:
    """The same kind of tokenizer with its files elsewhere."""
    if data.tokenizer in (None, "NullTokenizer", "ByteTokenizer"):
        kind = data.tokenizer or "NullTokenizer"
        raise ConfigError(f"--tokenizer-model {tokenizer_model}: the checkpoint's {kind} has no files, leave it out")
    return replace(
        data, tokenizer_type=data.tokenizer, tokenizer_model=tokenizer_model, vocab_file=None, merge_file=None
    )


def round_weights(module: nn.Module, dtype: torch.dtype) -> None:
    """Give every weight the value that it would have in a narrower dtype."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.to(dtype))


def tokenizer_of(data: DataConfig, config: ModelConfig) -> Tokenizer:
    """The tokenizer of a trained model. Raises DataError where it cannot be had, or has more ids than the model."""
    if data.tokenizer in (None, "NullTokenizer"):  # the vocabulary was given by --vocab-size
        return NullTokenizer(config.vocabulary - 1)
    tokenizer = build_tokenizer(data)
    if tokenizer.vocab_size > config.vocabulary:
        raise DataError(
            f"the {data.tokenizer} has {tokenizer.vocab_size} ids, the checkpoint's model {config.vocabulary}: this is "
            "not the tokenizer that it was trained with"
        )
    return tokenizer


def _checked_model(manifest: Manifest, model: ModelConfig, ctx: ParallelContext) -> ModelConfig:
    """The architecture with its true vocabulary, where it and the layout make sense together."""
    shapes = {entry.name: entry.shape for entry in manifest.tensors}
    table = shapes.get(f"model/{EMBEDDING_NAME}", ())
    if len(table) != 2:
        raise CheckpointError(f"the checkpoint of step {manifest.step} holds no model/{EMBEDDING_NAME} [v, h]")
    # What training padded its tables to was for its layout.
    model = replace(model, vocab_size=table[0], padded_vocab_size=None)
    if not 0 < model.num_layers <= len(shapes):
        raise CheckpointError(
            f"the checkpoint of step {manifest.step} says {model.num_layers} layers but holds {len(shapes)} tensors"
        )
    parallel = ParallelConfig(
        tensor_model_parallel_size=ctx.tp.size,
        pipeline_model_parallel_size=ctx.pp.size,
        context_parallel_size=ctx.grid.cp,
    )
    if found := model_violations(RunConfig(model=model, parallel=parallel), ctx.grid.world_size):
        raise ConfigError(
            f"the checkpoint of step {manifest.step} at tp {ctx.tp.size} x pp {ctx.pp.size}: {'; '.join(found)}"
        )
    return model


def _stored_dtype(manifest: Manifest) -> torch.dtype:
    """The narrowest that holds every weight as it is stored."""
    dtype: torch.dtype | None = None
    for entry in manifest.tensors:
        if entry.name.startswith("model/"):
            stored: torch.dtype = getattr(torch, entry.dtype)
            dtype = stored if dtype is None else torch.promote_types(dtype, stored)
    if dtype is None or not dtype.is_floating_point:
        raise CheckpointError(f"the checkpoint of step {manifest.step} holds no weights, or {dtype} ones")
    return dtype


def _build(config: ModelConfig, ctx: ParallelContext, dtype: torch.dtype) -> GPTChunk:
    """This rank's layers as one chunk, all weights zero."""
    layers = partition(config.num_layers, ctx.pp.size)
    plan = ChunkPlan(layers[ctx.pp.coordinate], has_embedding=ctx.is_first_stage, has_head=ctx.is_last_stage)
    factory = ParameterFactory(config, ctx, WeightGradientQueue(), None, dtype, sequence_parallel=False)
    return build_chunks(factory, [plan])[0]


def _held(chunk: nn.Module) -> list[Held]:
    return [
        part
        for parameter in spec_parameters(chunk)
        for part in held_parts("model", parameter.spec, 0, parameter.detach().reshape(-1), replicated=True)
    ]
