# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.planner.stage_layers import stage_layers

MODEL = ModelConfig(num_layers=6, hidden_size=512, num_attention_heads=8, seq_length=512, vocab_size=50304)


def test_by_count_every_stage_gets_as_many() -> None:
    layers = stage_layers(MODEL, ParallelConfig(pipeline_model_parallel_size=2))
    assert [list(one) for one in layers] == [[0, 1, 2], [3, 4, 5]]


def test_by_cost_a_wide_head_takes_the_place_of_layers() -> None:
    layers = stage_layers(MODEL, ParallelConfig(pipeline_model_parallel_size=2, pipeline_split="cost"))
    assert [len(one) for one in layers] == [6, 0]
