# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
from transformers import AutoConfig

from megatron_core.checkpoint.huggingface.family import Family
from megatron_core.checkpoint.huggingface.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 32,
    "intermediate_size": 96,
    "vocab_size": 61,
    "max_position_embeddings": 4096,
}
FAMILIES = (LLAMA, MISTRAL, QWEN2, QWEN3)


def read(family: Family, **values: Any) -> ModelConfig:
    return family.read_config(Settings("config.json", SIZES | values))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_defaults_are_those_of_transformers(family: Family) -> None:
    written = AutoConfig.for_model(family.name, **SIZES).to_dict()
    assert read(family) == read(family, **written)
    assert read(family).untie_embeddings_and_output_weights and read(family).norm_epsilon == 1e-6


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_written_reads_back(family: Family) -> None:
    sizes = {"num_key_value_heads": 4, "rope_theta": 5e5, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    model = read(family, **sizes)
    assert family.misfits(model) == [] and model.query_groups == 4
    written = family.write_config(model)
    assert family.read_config(Settings("", written)) == model
    theirs = AutoConfig.for_model(family.name, **written)
    assert family.read_config(Settings("", theirs.to_dict())) == model


def test_groups_heads_and_biases() -> None:
    assert (read(MISTRAL).query_groups, read(LLAMA).query_groups, read(QWEN3).head_dim) == (8, 32, 128)
    assert read(QWEN2).add_qkv_bias and not read(QWEN2).add_bias_linear
    assert read(QWEN3).qk_layernorm and not read(QWEN3).add_qkv_bias
    assert read(LLAMA, attention_bias=True, mlp_bias=True).add_bias_linear


def test_attention_in_a_window_leaves_as_many_positions() -> None:
    for family, values, length in (
        (MISTRAL, {"sliding_window": 1000}, 1000),
        (MISTRAL, {"sliding_window": None}, 4096),
        (QWEN2, {"sliding_window": 1000}, 4096),
        (QWEN2, {"sliding_window": 1000, "use_sliding_window": True}, 4096),  # from layer 28 on
        (QWEN3, {"sliding_window": 1000, "use_sliding_window": True, "max_window_layers": 1}, 1000),
        (QWEN3, {"sliding_window": 1000, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, 4096),
    ):
        model = read(family, **values)
        assert (model.seq_length, model.max_position_embeddings) == (length, length)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (LLAMA, {"attention_bias": True}, "mlp_bias is False, not True: attention has biases in all its linears"),
        (LLAMA, {"hidden_act": "gelu"}, "activation gelu: a gated MLP has silu"),
        (LLAMA, {"logits_scaling": 2.0}, "logits_scaling 2.0: not understood"),
        (LLAMA, {"num_experts": 8}, "num_experts 8: not understood"),
        (QWEN3, {"attention_bias": True}, "attention_bias is True"),
        (QWEN2, {"layer_types": ["linear_attention"]}, "layer_types has linear_attention"),
        (MISTRAL, {"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_what_would_be_computed_otherwise(family: Family, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(family, **changes)
