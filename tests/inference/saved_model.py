# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of small models with known weights, and the same models built in place at any layout."""

from dataclasses import replace
from pathlib import Path

import torch

from megatron_core.checkpoint.directory import prepare, publish, step_directory
from megatron_core.checkpoint.manifest import merge
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.saved_config import config_to_json
from megatron_core.checkpoint.writer import Shard, rank_file_name, write_rank_file
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.config.run import RunConfig
from megatron_core.inference.model import InferenceModel
from megatron_core.model.gpt import ChunkPlan, build_chunks
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from tests.small_model import ALONE, make_factory, make_model, small

# Weights that are not small: with the usual 0.02, all logits are nearly equal and nothing would show.
GPT2 = small(init_method_std=0.3, num_layers=4)
LLAMA = small(
    init_method_std=0.3,
    num_layers=4,
    normalization="RMSNorm",
    swiglu=True,
    position_embedding_type="rope",
    add_bias_linear=False,
    untie_embeddings_and_output_weights=True,
    group_query_attention=True,
    num_query_groups=2,
    ffn_hidden_size=48,
)
MODELS = {"gpt2": GPT2, "llama": LLAMA}


def in_place(
    config: ModelConfig,
    ctx: ParallelContext = ALONE,
    *,
    chunks_a_stage: int = 1,
    sequence_parallel: bool = False,
    dtype: torch.dtype = torch.float64,
) -> InferenceModel:
    """The model at the context's layout, its weights those of every layout; layers are dealt out evenly."""
    factory = make_factory(config, ctx, sequence_parallel=sequence_parallel, dtype=dtype)
    p, stage = ctx.pp.size, ctx.pp.coordinate
    count = p * chunks_a_stage
    each = config.num_layers // count
    plans = [
        ChunkPlan(range(k * each, (k + 1) * each), has_embedding=k == 0, has_head=k == count - 1)
        for k in range(stage, count, p)
    ]
    chunks = build_chunks(factory, plans)
    return InferenceModel(config, ctx, chunks, dtype, sequence_parallel=factory.sequence_parallel)


def save(
    root: Path,
    config: ModelConfig,
    data: DataConfig | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    says: ModelConfig | None = None,
) -> Path:
    """The step directory of a checkpoint that holds the same weights; `says`: of what model it claims to be."""
    step = 7
    chunk = make_model(make_factory(config, dtype=dtype))
    shards = []
    for parameter in spec_parameters(chunk):
        values = parameter.spec.real(parameter.detach()).contiguous()
        name = f"model/{parameter.spec.name}"
        shards.append(Shard(name=name, shape=parameter.spec.shape, rectangle=whole(values.shape), values=values))
    attempt = prepare(root, step)
    written = write_rank_file(step_directory(root, step), rank_file_name(0, attempt), shards)
    saved = config_to_json(RunConfig(model=replace(says or config, vocab_size=None), data=data or DataConfig()))
    publish(root, merge(step, [written], state={"step": step}, config=saved))
    return step_directory(root, step)
