# SPDX-License-Identifier: Apache-2.0
"""Counts against the parameters that real chunks hold, and the published sizes."""

import dataclasses

import pytest
from torch import nn

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.model.gpt import build_chunks
from megatron_core.planner.parameters import stage_parameters
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.planner.workload import Workload
from megatron_core.training.stages import chunk_plans
from tests.planner.workloads import workload
from tests.small_model import make_factory

GPT = ModelConfig(
    num_layers=4,
    hidden_size=32,
    num_attention_heads=4,
    seq_length=16,
    max_position_embeddings=16,
    vocab_size=101,
    make_vocab_size_divisible_by=8,
)
LLAMA = dataclasses.replace(
    GPT,
    swiglu=True,
    normalization="RMSNorm",
    position_embedding_type="rope",
    add_bias_linear=False,
    group_query_attention=True,
    num_query_groups=2,
    qk_layernorm=True,
    untie_embeddings_and_output_weights=True,
)
QWEN = dataclasses.replace(LLAMA, add_qkv_bias=True, embed_layernorm=True, qk_layernorm=False)


@pytest.mark.parametrize("model", [GPT, LLAMA, QWEN])
@pytest.mark.parametrize("pp", [1, 2])
def test_counts_what_a_stage_holds(model: ModelConfig, pp: int) -> None:
    work = workload(model, pp=pp)
    for stage in range(pp):
        chunks = build_chunks(make_factory(model), chunk_plans(work.layers, stage, pp))
        held = sum(parameter.numel() for parameter in nn.ModuleList(chunks).parameters())
        assert stage_parameters(work, stage) == held


def test_mt_nlg_has_530_billion() -> None:
    model = ModelConfig(
        num_layers=105,
        hidden_size=20480,
        num_attention_heads=128,
        seq_length=2048,
        max_position_embeddings=2048,
        vocab_size=50257,
    )
    layers = stage_layers(model, ParallelConfig(pipeline_model_parallel_size=35))
    work: Workload = workload(model, pp=35, tp=8).replace(layers=layers)
    table = work.vocabulary_rows * 20480
    # The last stage's copy of the tied table is no parameter of its own; replicated norms and biases count once a tp.
    total = 8 * (sum(stage_parameters(work, stage) for stage in range(35)) - table)
    assert total == pytest.approx(530e9, rel=0.01)
