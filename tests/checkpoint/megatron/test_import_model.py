# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.megatron.import_model import foreign_model
from megatron_core.checkpoint.megatron.open_megatron import open_megatron
from megatron_core.checkpoint.saved_config import config_from_json
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from tests.checkpoint.megatron.trees import Weights, weights, write_legacy, write_torch_dist
from tests.small_model import small

GPT = small(num_layers=4, make_vocab_size_divisible_by=8)
LLAMA = small(
    num_layers=4,
    make_vocab_size_divisible_by=8,
    num_attention_heads=6,
    hidden_size=48,
    group_query_attention=True,
    num_query_groups=2,
    kv_channels=4,
    swiglu=True,
    ffn_hidden_size=40,
    normalization="RMSNorm",
    position_embedding_type="rope",
    max_position_embeddings=16,
    add_bias_linear=False,
    add_qkv_bias=True,
    qk_layernorm=True,
    untie_embeddings_and_output_weights=True,
)
NULL = DataConfig(tokenizer_type="NullTokenizer")


def require_same(path: Path, ours: Weights, config: ModelConfig) -> None:
    foreign = foreign_model(open_megatron(path), NULL, config.vocabulary)
    found = {tensor.name: tensor for tensor in foreign.tensors}
    assert found.keys() == ours.keys()
    for name, tensor in found.items():
        read = tensor.read()
        assert (tensor.shape, tensor.dtype) == (tuple(read.shape), read.dtype) and read.is_contiguous(), name
        assert read.dtype == ours[name].dtype and torch.equal(read, ours[name]), name
    told = replace(config_from_json(foreign.config).model, vocab_size=config.vocabulary)
    expected = replace(config, ffn_hidden_size=config.ffn_size, kv_channels=config.head_dim, gelu=config.gelu_form)
    assert told == expected


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (GPT, {}),
        (GPT, {"tp": 2, "pp": 2, "vpp": 2}),
        (GPT, {"tp": 2, "pp": 2, "names": "old", "version": 2}),
        (GPT, {"tp": 2, "names": "old", "version": 1}),
        (GPT, {"tp": 4, "pp": 2, "names": "oldest", "version": 0, "zipped": False}),
        (GPT, {"names": "te"}),
        (LLAMA, {"tp": 2, "pp": 2, "vpp": 2}),
        (LLAMA, {"tp": 2, "pp": 4, "names": "te"}),
        (replace(LLAMA, num_query_groups=1), {"tp": 2, "pp": 2}),
        (replace(LLAMA, num_query_groups=3, add_bias_linear=True), {"tp": 2}),
        (replace(LLAMA, untie_embeddings_and_output_weights=False, qk_layernorm=False), {"pp": 2, "names": "old"}),
        (replace(GPT, untie_embeddings_and_output_weights=True), {"tp": 2, "pp": 2, "names": "old"}),
    ],
)
def test_trees_of_any_layout_and_age(tmp_path: Path, config: ModelConfig, layout: dict[str, Any]) -> None:
    ours = weights(config, torch.bfloat16)
    directory = write_legacy(tmp_path, ours, config, **layout)
    require_same(tmp_path, ours, config)
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    require_same(directory, ours, config)


@pytest.mark.parametrize("config", [GPT, LLAMA])
@pytest.mark.parametrize(("stacked", "common"), [(True, True), (False, False)])
def test_torch_dist(tmp_path: Path, config: ModelConfig, stacked: bool, common: bool) -> None:
    ours = weights(config)
    write_torch_dist(tmp_path, ours, config, stacked=stacked, common=common)
    require_same(tmp_path, ours, config)
