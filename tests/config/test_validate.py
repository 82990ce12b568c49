# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import model_violations, validate, violations
from megatron_core.errors import ConfigError


def test_a_good_config_passes(config_with):
    validate(config_with(), 1)
    validate(config_with(), 7)


def test_all_violations_come_together(config_with):
    config = config_with(hidden_size=65, fp16=True, bf16=True, train_iters=None)
    with pytest.raises(ConfigError) as error:
        validate(config, 1)
    assert str(error.value).splitlines() == violations(config, 1)
    assert len(violations(config, 1)) == 3


def test_a_rule_is_silent_where_a_field_it_needs_is_out_of_range(complaints):
    assert complaints(num_attention_heads=0) == ["--num-attention-heads is required"]
    assert complaints(tensor_model_parallel_size=0) == ["--tensor-model-parallel-size is 0; it must be >= 1"]
    assert complaints(micro_batch_size=-2) == ["--micro-batch-size is -2; it must be >= 1"]


def test_an_empty_world(complaints):
    assert complaints(0) == ["the world has 0 ranks; it must have at least 1"]


def test_a_model_alone_needs_no_training() -> None:
    model = ModelConfig(num_layers=2, hidden_size=32, num_attention_heads=4, seq_length=8, max_position_embeddings=8)
    config = RunConfig(model=model, parallel=ParallelConfig(tensor_model_parallel_size=3))
    assert model_violations(RunConfig(model=model), 1) == []
    assert model_violations(config, 3) == [
        "--num-attention-heads 4 is not a multiple of --tensor-model-parallel-size 3",
        "the MLP's width 128 is not a multiple of --tensor-model-parallel-size 3: set --ffn-hidden-size",
    ]
