# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from megatron_core.checkpoint.huggingface.rotary import read_rotary, write_rotary
from megatron_core.checkpoint.huggingface.settings import Settings
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"type": "linear", "factor": 4.0}


def read(**values: Any) -> ModelConfig:
    return ModelConfig(**read_rotary(Settings("config.json", values)))


def test_keys_of_both_versions() -> None:
    for old, new in (
        ({}, {"rope_parameters": {"rope_type": "default"}}),
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        ({"rope_scaling": LINEAR}, {"rope_parameters": LINEAR}),
        ({"rope_theta": 5e5, "rope_scaling": LLAMA3}, {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}),
        ({"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    ):  # fmt: skip
        assert read(**old) == read(**new)
    model = read(rope_theta=5e5, rope_scaling=LLAMA3)
    assert (model.rotary_base, model.use_rope_scaling, model.rope_scaling_factor) == (5e5, True, 32.0)
    assert read(rope_scaling=LINEAR).rotary_seq_len_interpolation_factor == 4.0


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, "rope_type yarn: rotary positions are rescaled as in linear or llama3"),
        (LLAMA3 | {"low_freq_factor": 2.0}, "low_freq_factor is 2.0, not 1.0: .* Llama 3's constants alone"),
        (LLAMA3 | {"original_max_position_embeddings": 4096}, "original_max_position_embeddings is 4096, not 8192"),
        ({"rope_type": "llama3", "factor": 8.0}, "low_freq_factor is missing"),
        ({"rope_type": "default", "attention_factor": 1.1}, "attention_factor 1.1: not understood"),
    ],
)
def test_what_would_be_computed_otherwise(scaling: dict[str, Any], message: str) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(CheckpointError, match=message):
            read(**{key: scaling})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rotary_base": 5e5, "use_rope_scaling": True, "rope_scaling_factor": 32.0},
        {"rotary_seq_len_interpolation_factor": 4.0},
        {"rotary_percent": 0.25},
    ],
)
def test_what_is_written_reads_back(fields: dict[str, Any]) -> None:
    model = ModelConfig(position_embedding_type="rope", **fields)
    written = write_rotary(model)
    assert read(**written) == model
    old = {key: value for key, value in written.items() if key != "rope_parameters"}
    assert read(**old) == model
    assert read(rope_parameters=written["rope_parameters"]) == model
