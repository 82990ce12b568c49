# SPDX-License-Identifier: Apache-2.0
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.checkpoint.megatron.legacy_read import open_legacy
from megatron_core.checkpoint.megatron.parameters import parameters
from megatron_core.checkpoint.rectangle import whole
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.trees import Backend, layer_shards, weights, write_legacy
from tests.small_model import small

CONFIG = small(num_layers=4, swiglu=True, ffn_hidden_size=48, make_vocab_size_divisible_by=8)
WEIGHTS = weights(CONFIG)


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Write a rank's file again after `change`."""
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_legacy(tmp_path, WEIGHTS, CONFIG, tp=2, pp=2)


def test_what_an_open_tree_says(tree: Path) -> None:
    opened = open_legacy(tree)
    assert opened.origin == f"{tree} (tensor 2 x pipeline 2 x 1 chunks, version 3)"
    assert (opened.iteration, opened.padded_vocab_size, opened.num_layers) == (1000, 48, 4)
    assert opened.arguments["num_layers"] == 4 and opened.inert == {f"{Backend.__module__}.Backend"}


def test_layers_are_counted_over_chunks_and_stages(tmp_path: Path) -> None:
    for vpp in (1, 2):
        tree = write_legacy(tmp_path / str(vpp), WEIGHTS, CONFIG, tp=2, pp=2, vpp=vpp)
        tensors = open_legacy(tree).assemble(parameters(CONFIG, 48))
        for layer in range(4):
            expected = layer_shards(WEIGHTS, layer, CONFIG, 1)
            for name, (values,) in expected.items():
                tensor = tensors[f"decoder.layers.{layer}.{name}"]
                read = torch.empty(tensor.shape)
                tensor.fill(read, whole(tensor.shape))
                assert torch.equal(read, values), (vpp, layer, name)


def test_stages_of_other_sizes(tree: Path) -> None:
    """As --decoder-first-pipeline-num-layers leaves them: three layers, then one."""
    for rank in range(2):
        first, last = (tree / f"mp_rank_{rank:02d}_{p:03d}" / "model_optim_rng.pt" for p in range(2))
        moved: dict[str, Any] = {}

        def give(state: dict[str, Any], moved: dict[str, Any] = moved) -> None:
            names = [name for name in state["model"] if name.startswith("decoder.layers.0.")]
            moved.update({name.replace("layers.0", "layers.2"): state["model"].pop(name) for name in names})
            for name in [name for name in state["model"] if name.startswith("decoder.layers.1.")]:
                state["model"][name.replace("layers.1", "layers.0")] = state["model"].pop(name)

        changed(last, give)
        changed(first, lambda state, moved=moved: state["model"].update(moved))  # type: ignore[misc]
    tensors = open_legacy(tree).assemble(parameters(CONFIG, 48))
    tensor = tensors["decoder.layers.3.mlp.linear_fc2.weight"]
    read = torch.empty(tensor.shape)
    tensor.fill(read, whole(tensor.shape))
    assert torch.equal(read, WEIGHTS["layers.3.mlp.down.weight"])


def remove(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["model"].pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["args"].__setattr__("hidden_size", 64), "different checkpoints: hidden_size is 64 and 32"),
        (lambda s: s.update(iteration=999), "iteration is 999 and 1000"),
        (lambda s: s.update(checkpoint_version=2.0), "checkpoint_version is 2.0 and 3.0"),
        (lambda s: s.update(model0=s["model"], model1=s.pop("model")), "number of chunks is 2 and 1"),
        (lambda s: s.update(checkpoint_version=4.0), "no checkpoint of versions 0 to 3"),
        (lambda s: s.update(iteration="5"), "at an iteration of at least 0"),
        (lambda s: s.pop("args"), "holds no arguments of Megatron-LM"),
        (lambda s: s.pop("model"), r"holds no weights \(model\)"),
        (remove("decoder.layers.0.mlp.linear_fc2.weight"), "hold different weights, such as decoder.layers.2.mlp"),
        (lambda s: s["model"].update({"decoder.layers.0.mlp.router.weight": torch.ones(2)}), "1 weights that no GPT"),
        (
            lambda s: s["model"].update({"decoder.layers.0.mlp.linear_fc1.layer_norm_weight": torch.ones(2)}),
            "twice, under different names",
        ),
    ],
)
def test_ranks_that_disagree_are_one_error(tree: Path, change: Callable[[dict[str, Any]], Any], message: str) -> None:
    changed(tree / "mp_rank_01_001" / "model_optim_rng.pt", change)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_legacy(tree)
    assert "\n" not in str(caught.value)


def test_a_missing_shard_is_one_error(tree: Path) -> None:
    shutil.rmtree(tree / "mp_rank_01_000")
    with pytest.raises(CheckpointError, match="has 3 of 4 ranks"):
        open_legacy(tree)
    shutil.rmtree(tree / "mp_rank_01_001")
    with pytest.raises(CheckpointError, match="saved with tensor_model_parallel_size 2, but holds 1 such ranks"):
        open_legacy(tree)


def test_a_weight_on_two_stages_and_no_embedding(tree: Path) -> None:
    norm = {"decoder.final_layernorm.weight": torch.ones(32)}
    for rank in range(2):
        changed(tree / f"mp_rank_{rank:02d}_000" / "model_optim_rng.pt", lambda state: state["model"].update(norm))
    with pytest.raises(CheckpointError, match=r"holds decoder\.final_layernorm\.weight, and so does another stage"):
        open_legacy(tree)
    for rank in range(2):
        changed(
            tree / f"mp_rank_{rank:02d}_000" / "model_optim_rng.pt",
            lambda state: [state["model"].pop(name) for name in (*norm, "embedding.word_embeddings.weight")],
        )
    with pytest.raises(CheckpointError, match="holds no word embeddings"):
        open_legacy(tree)


def test_a_file_without_a_dictionary(tree: Path) -> None:
    torch.save([1], tree / "mp_rank_00_000" / "model_optim_rng.pt")
    with pytest.raises(CheckpointError, match="it holds no dictionary"):
        open_legacy(tree)
