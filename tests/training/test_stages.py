# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.errors import ConfigError
from megatron_core.model.gpt import ChunkPlan
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.training.stages import chunk_plans, describe_stages

MODEL = ModelConfig(
    num_layers=8, hidden_size=64, num_attention_heads=4, seq_length=32, max_position_embeddings=32, vocab_size=50000
)


def layers_of(**parallel: object) -> list[list[int]]:
    return [list(layers) for layers in stage_layers(MODEL, ParallelConfig(**parallel))]  # type: ignore[arg-type]


def test_by_count() -> None:
    assert layers_of(pipeline_model_parallel_size=2) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_large_vocabulary_counts_by_cost() -> None:
    """The head costs more than all layers together here, so the last stage gets as few as there can be."""
    by_cost = layers_of(pipeline_model_parallel_size=2, pipeline_split="cost")
    assert len(by_cost[0]) > 4 and by_cost[0] + by_cost[1] == list(range(8))


def test_ends_may_be_given_or_counted_as_layers() -> None:
    assert [len(s) for s in layers_of(pipeline_model_parallel_size=2, decoder_first_pipeline_num_layers=3)] == [3, 5]
    counted = layers_of(
        pipeline_model_parallel_size=2,
        account_for_embedding_in_pipeline_split=True,
        account_for_loss_in_pipeline_split=True,
    )
    assert [len(s) for s in counted] == [4, 4]
    lopsided = layers_of(pipeline_model_parallel_size=3, account_for_loss_in_pipeline_split=True)
    assert [len(s) for s in lopsided] == [3, 3, 2]


def test_virtual_stages_alternate_between_ranks() -> None:
    """CKP-05's numbers: 8 layers, 2 stages, 2 chunks: stage 0 holds 0, 1, 4, 5 and stage 1 holds 2, 3, 6, 7."""
    config = ParallelConfig(pipeline_model_parallel_size=2, num_virtual_stages_per_pipeline_rank=2)
    layers = stage_layers(MODEL, config)
    assert chunk_plans(layers, 0, 2) == [ChunkPlan(range(2), True, False), ChunkPlan(range(4, 6), False, False)]
    assert chunk_plans(layers, 1, 2) == [ChunkPlan(range(2, 4), False, False), ChunkPlan(range(6, 8), False, True)]
    assert describe_stages(layers, 2) == "0-1 + embedding, 4-5 | 2-3, 6-7 + head"


def test_one_stage_holds_everything() -> None:
    layers = stage_layers(MODEL, ParallelConfig())
    assert chunk_plans(layers, 0, 1) == [ChunkPlan(range(8), True, True)]
    assert describe_stages(layers, 1) == "0-7 + embedding + head"


def test_a_head_may_stand_alone() -> None:
    assert describe_stages((range(4), range(4, 4)), 2) == "0-3 + embedding | no layer + head"


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match="8"):
        layers_of(pipeline_model_parallel_size=16)
