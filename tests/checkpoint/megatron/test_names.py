# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.names import canonical, flattened, global_name, layer_of
from megatron_core.errors import CheckpointError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embedding.word_embeddings.weight", (None, "embedding.word_embeddings.weight")),
        ("language_model.embedding.position_embeddings.weight", (None, "embedding.position_embeddings.weight")),
        ("module.language_model.encoder.layers.3.input_norm.weight", (3, "input_layernorm.weight")),
        ("language_model.transformer.layers.0.attention.query_key_value.bias", (0, "self_attention.linear_qkv.bias")),
        ("language_model.encoder.layers.11.self_attention.dense.weight", (11, "self_attention.linear_proj.weight")),
        ("language_model.encoder.layers.1.post_attention_norm.bias", (1, "pre_mlp_layernorm.bias")),
        ("language_model.encoder.layers.1.mlp.dense_4h_to_h.weight", (1, "mlp.linear_fc2.weight")),
        ("language_model.encoder.final_norm.weight", (None, "decoder.final_layernorm.weight")),
        ("decoder.layers.2.mlp.linear_fc1.layer_norm_bias", (2, "pre_mlp_layernorm.bias")),
        ("decoder.layers.2.self_attention.linear_qkv.layer_norm_weight", (2, "input_layernorm.weight")),
        ("decoder.layers.2.self_attention.k_layernorm.weight", (2, "self_attention.k_layernorm.weight")),
        ("decoder.final_layernorm.bias", (None, "decoder.final_layernorm.bias")),
        ("word_embeddings_for_head.weight", (None, "output_layer.weight")),
        ("language_model.output_layer.weight", (None, "output_layer.weight")),
        ("decoder.layers.0.self_attention.core_attention._extra_state", None),
        ("decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_2", None),
        ("rotary_pos_emb.inv_freq", None),
    ],
)
def test_names_of_all_ages(name: str, expected: object) -> None:
    assert canonical(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "decoder.layers.0.mlp.router.weight",
        "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight",
        "decoder.layers.0.self_attention.linear_q_down_proj.weight",
        "decoder.layers.9999999.mlp.linear_fc1.weight",
        "language_model.pooler.dense.weight",
        "lm_head.dense.weight",
        "embedding.word_embeddings.bias",
        "",
    ],
)
def test_other_weights_are_not_passed_over(name: str) -> None:
    with pytest.raises(LookupError):
        canonical(name)


def test_names_of_the_whole_model() -> None:
    assert global_name(5, "mlp.linear_fc1.weight") == "decoder.layers.5.mlp.linear_fc1.weight"
    assert layer_of("decoder.layers.5.mlp.linear_fc1.weight") == 5
    assert global_name(None, "output_layer.weight") == "output_layer.weight" and layer_of("output_layer.weight") is None


def test_dictionaries_are_flattened_and_cannot_go_round() -> None:
    tensor = FileTensor(path=Path("x"), start=0, layout=torch.empty(1, device="meta"))
    nested = {"language_model": {"encoder": {"layers.0.x": tensor}, "5": {"y": tensor}}, "note": "text", 10**5000: {}}
    assert dict(flattened(nested, "here")) == {
        "language_model.encoder.layers.0.x": tensor,
        "language_model.5.y": tensor,
    }
    nested["language_model"]["again"] = nested  # type: ignore[index]
    with pytest.raises(CheckpointError, match="here: weights nested more than 8 deep"):
        dict(flattened(nested, "here"))
