# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
from transformers import GPT2Config

from megatron_core.checkpoint.huggingface.gpt2 import GPT2
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
from tests.small_model import small

SIZES = {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 61}


def read(**values: Any) -> ModelConfig:
    return GPT2.read_config(Settings("config.json", SIZES | values))


def test_defaults_are_those_of_transformers() -> None:
    assert read() == read(**GPT2Config(**SIZES).to_dict())
    model = read()
    assert (model.max_position_embeddings, model.ffn_size, model.norm_epsilon) == (1024, 128, 1e-5)
    assert (model.gelu, model.untie_embeddings_and_output_weights) == ("tanh", False)
    assert read(n_ctx=77).max_position_embeddings == 77


def test_what_is_written_reads_back() -> None:
    for model in (small(gelu="exact", norm_epsilon=1e-3), small(untie_embeddings_and_output_weights=True)):
        back = GPT2.read_config(Settings("", GPT2.write_config(model)))
        assert GPT2.write_config(back) == GPT2.write_config(model)
        assert (back.activation, back.norm_epsilon) == (model.activation, model.norm_epsilon)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True, not False"),
        ({"scale_attn_weights": False}, "scale_attn_weights is False, not True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"activation_function": "relu"}, "activation relu"),
        ({"rotary_pct": 0.5}, "rotary_pct 0.5: not understood, and may change the numbers"),
    ],
)
def test_what_would_be_computed_otherwise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)
