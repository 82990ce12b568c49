# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.model import ModelConfig

SIZES = {"hidden_size": 4096, "num_attention_heads": 32}


def test_sizes_that_follow_from_others():
    model = ModelConfig(**SIZES)
    assert (model.head_dim, model.ffn_size, model.query_groups) == (128, 16384, 32)
    given = ModelConfig(**SIZES, kv_channels=64, ffn_hidden_size=100, group_query_attention=True, num_query_groups=8)
    assert (given.head_dim, given.ffn_size, given.query_groups) == (64, 100, 8)


def test_the_gated_mlp_has_megatrons_width():
    assert ModelConfig(**SIZES, swiglu=True).ffn_size == 10880  # 8 h / 3 = 10922, down to a multiple of 64


@pytest.mark.parametrize(
    ("values", "activation", "gelu"),
    [
        ({}, "gelu_tanh", "tanh"),
        ({"add_bias_linear": False}, "gelu_exact", "exact"),
        ({"gelu": "exact"}, "gelu_exact", "exact"),
        ({"gelu": "tanh", "add_bias_linear": False}, "gelu_tanh", "tanh"),
        ({"swiglu": True}, "swiglu", "auto"),
        ({"squared_relu": True, "gelu": "exact"}, "squared_relu", "exact"),
    ],
)
def test_activations(values, activation, gelu):
    model = ModelConfig(**values)
    assert (model.activation, model.gelu_form) == (activation, gelu)


def test_the_vocabulary_must_be_known():
    assert ModelConfig(vocab_size=7).vocabulary == 7
    with pytest.raises(AssertionError, match="known only after the tokenizer was built"):
        _ = ModelConfig().vocabulary
