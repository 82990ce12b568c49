# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.megatron.import_model import foreign_model, padding_note, vocabulary_question
from megatron_core.checkpoint.megatron.open_megatron import open_megatron
from megatron_core.checkpoint.saved_config import config_from_json
from megatron_core.config.data import DataConfig
from megatron_core.config.model import ModelConfig
from megatron_core.errors import CheckpointError
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


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1), (6, 2), (6, 3)])
@pytest.mark.parametrize("tp", [1, 2])
def test_groups_of_queries_from_megatron_cnv_01(tmp_path: Path, heads: int, groups: int, tp: int) -> None:
    config = replace(LLAMA, num_layers=1, num_attention_heads=heads, num_query_groups=groups, add_bias_linear=True)
    ours = weights(config)
    write_legacy(tmp_path, ours, config, tp=tp)
    require_same(tmp_path, ours, config)


@pytest.mark.parametrize("names", ["core", "old"])
def test_a_tied_head_that_differs_is_not_dropped_cnv_06(tmp_path: Path, names: Any) -> None:
    ours = weights(GPT)
    untied = {**ours, "head.weight": ours["embedding.tokens.weight"] + 1}
    write_legacy(tmp_path, untied, replace(GPT, untie_embeddings_and_output_weights=True), pp=2, names=names)
    for path in tmp_path.rglob("*.pt"):
        state = torch.load(path, weights_only=False)
        state["args"].untie_embeddings_and_output_weights = False
        torch.save(state, path)
    foreign = foreign_model(open_megatron(tmp_path), NULL, GPT.vocabulary)
    table = next(tensor for tensor in foreign.tensors if tensor.name == "embedding.tokens.weight")
    with pytest.raises(CheckpointError, match=r"is not the same in .* and output_layer\.weight in .*: up to 1 apart"):
        table.read()


def test_an_untied_head_that_is_missing_cnv_06(tmp_path: Path) -> None:
    ours = weights(GPT)
    write_legacy(tmp_path, ours, GPT)
    for path in tmp_path.rglob("*.pt"):
        state = torch.load(path, weights_only=False)
        state["args"].untie_embeddings_and_output_weights = True
        torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"output_layer\.weight is missing"):
        foreign_model(open_megatron(tmp_path), NULL, GPT.vocabulary)


def test_the_vocabulary_is_the_true_one(tmp_path: Path) -> None:
    write_legacy(tmp_path, weights(GPT), GPT, tp=2)
    opened = open_megatron(tmp_path)
    for size in (0, 49):
        with pytest.raises(CheckpointError, match=f"cannot be a vocabulary of {size}"):
            foreign_model(opened, NULL, size)
    note = padding_note(opened, 37)
    assert note is not None and note.startswith("11 rows of padding are left out") and "?" not in note
    assert "30 tokens would have been padded to 32, not 48" in str(padding_note(opened, 30))
    assert padding_note(opened, 48) is None
    question = vocabulary_question(opened)
    assert "embeddings for 48 tokens" in question and "give --vocab-size" in question and "names none" in question


def test_a_model_with_fewer_layers_than_its_arguments_say(tmp_path: Path) -> None:
    write_legacy(tmp_path, weights(GPT), replace(GPT, num_layers=2))
    for path in tmp_path.rglob("*.pt"):
        state = torch.load(path, weights_only=False)
        state["args"].num_layers = 10**9
        torch.save(state, path)
    with pytest.raises(CheckpointError, match="holds 2 layers, its arguments say 1000000000"):
        foreign_model(open_megatron(tmp_path), NULL, GPT.vocabulary)
