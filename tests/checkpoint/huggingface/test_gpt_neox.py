# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
from transformers import GPTNeoXConfig

from megatron_core.checkpoint.huggingface.gpt_neox import GPT_NEOX
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
from tests.small_model import small

SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 61,
}


def read(**values: Any) -> ModelConfig:
    return GPT_NEOX.read_config(Settings("config.json", SIZES | values))


def test_defaults_are_those_of_transformers() -> None:
    assert read() == read(**GPTNeoXConfig(**SIZES).to_dict())
    model = read()
    assert (model.rotary_percent, model.rotary_base, model.activation) == (0.25, 10000.0, "gelu_exact")
    assert model.use_parallel_residual and model.untie_embeddings_and_output_weights


def test_keys_of_pythia() -> None:
    model = read(rotary_pct=0.5, rotary_emb_base=5e4, use_parallel_residual=False, tie_word_embeddings=True)
    assert (model.rotary_percent, model.rotary_base) == (0.5, 5e4)
    assert not model.use_parallel_residual and not model.untie_embeddings_and_output_weights


def test_version_4_saves_its_numbers_under_two_names() -> None:
    names = {"rotary_pct": 0.5, "partial_rotary_factor": 0.5, "rotary_emb_base": 5e4, "rope_theta": 5e4}
    assert read(**names) == read(rotary_pct=0.5, rotary_emb_base=5e4)
    with pytest.raises(CheckpointError, match=r"rotary_pct 0.5, partial_rotary_factor 0.25: these are names of one"):
        read(**names | {"partial_rotary_factor": 0.25})


@pytest.mark.parametrize(("parallel", "share"), [(False, 0.5), (True, 0.25), (True, 1.0)])
def test_what_is_written_reads_back(parallel: bool, share: float) -> None:
    model = small(position_embedding_type="rope", rotary_percent=share, rotary_base=5e4, use_parallel_residual=parallel)
    written = GPT_NEOX.write_config(model)
    back = GPT_NEOX.read_config(Settings("", written))
    assert GPT_NEOX.read_config(Settings("", GPTNeoXConfig(**written).to_dict())) == back
    assert GPT_NEOX.write_config(back) == GPT_NEOX.write_config(model)
    assert (back.use_parallel_residual, back.rotary_percent, back.activation) == (parallel, share, "gelu_tanh")


def test_biases_in_some_linears_alone() -> None:
    with pytest.raises(CheckpointError, match="attention_bias is False, not True: its MLP has biases"):
        read(attention_bias=False)
