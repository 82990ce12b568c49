# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.megatron.arguments import model_config
from megatron_core.checkpoint.megatron.target import Target
from megatron_core.checkpoint.megatron.write_arguments import write_arguments
from megatron_core.config.model import ModelConfig
from megatron_core.errors import ConfigError
from tests.small_model import small

MANIFEST = Manifest(step=7, tensors=(), files=(), state={"consumed_samples": 99}, config={})


def written(config: ModelConfig, **layout: Any) -> dict[str, Any]:
    return vars(write_arguments(config, Target(**layout), MANIFEST, torch.bfloat16))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gelu": "exact"},
        {"gelu": "tanh", "add_bias_linear": False},
        {"gelu": "exact", "add_bias_linear": False, "add_qkv_bias": True},
        {"squared_relu": True, "norm_epsilon": 1e-3},
        {"swiglu": True, "ffn_hidden_size": 48, "position_embedding_type": "rope", "rotary_base": 5e5},
        {"position_embedding_type": "rope", "use_rope_scaling": True, "rope_scaling_factor": 32.0},
        {"position_embedding_type": "rope", "rotary_percent": 0.5, "rotary_interleaved": True},
        {"position_embedding_type": "rope", "rotary_seq_len_interpolation_factor": 4.0},
        {"position_embedding_type": "none"},
        {"group_query_attention": True, "num_query_groups": 2, "normalization": "RMSNorm", "qk_layernorm": True},
        {"group_query_attention": True, "num_query_groups": 4, "untie_embeddings_and_output_weights": True},
    ],
)
def test_arguments_mean_the_same_model_when_they_are_read(changes: dict[str, Any]) -> None:
    config = small(**changes)
    expected = replace(config, ffn_hidden_size=config.ffn_size, kv_channels=config.head_dim, gelu=config.gelu_form)
    assert model_config(written(config), config.vocabulary, "here") == expected


def test_layout_and_place_in_the_run() -> None:
    found = written(
        small(num_layers=8, make_vocab_size_divisible_by=8),
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        num_layers_per_virtual_pipeline_stage=2,
        transformer_engine=False,
    )
    assert (found["virtual_pipeline_model_parallel_size"], found["padded_vocab_size"]) == (2, 48)
    assert (found["iteration"], found["consumed_train_samples"], found["transformer_impl"]) == (7, 99, "local")
    assert found["bf16"] and not found["fp16"] and found["params_dtype"] == torch.bfloat16


@pytest.mark.parametrize("name", ["embed_layernorm", "use_parallel_residual"])
def test_models_that_megatron_has_not(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: Megatron-LM has no such model"):
        written(small(**{name: True}))
