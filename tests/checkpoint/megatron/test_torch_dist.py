# SPDX-License-Identifier: Apache-2.0
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from megatron_core.checkpoint.megatron.parameters import parameters
from megatron_core.checkpoint.megatron.torch_dist import open_torch_dist
from megatron_core.errors import CheckpointError
from tests.checkpoint.megatron.test_import_model import LLAMA, require_same
from tests.checkpoint.megatron.trees import (
    Backend,
    arguments,
    finish_torch_dist,
    torch_dist_tensors,
    weights,
    write_torch_dist,
)
from tests.rank_pool import run_ranks
from tests.small_model import small

CONFIG = small(make_vocab_size_divisible_by=8)
WEIGHTS = weights(CONFIG)
LLAMA_WEIGHTS = weights(LLAMA)
FC1 = "decoder.layers.mlp.linear_fc1.weight"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_torch_dist(tmp_path, WEIGHTS, CONFIG, common=True)


def test_what_an_open_tree_says(tree: Path) -> None:
    opened = open_torch_dist(tree)
    assert (opened.origin, opened.iteration) == (f"{tree} (torch_dist)", 1000)
    assert (opened.padded_vocab_size, opened.num_layers) == (40, 2)
    assert opened.inert == {f"{Backend.__module__}.Backend"}


def test_what_has_no_sign_was_never_finished(tree: Path) -> None:
    sign = tree / "metadata.json"
    for text in ("", "[]", "{}", "[" * 100_000):
        sign.write_text(text)
        with pytest.raises(CheckpointError, match="does not say in which format"):
            open_torch_dist(tree)
    sign.write_text('{"sharded_backend": "zarr"}')
    with pytest.raises(CheckpointError, match="is in the format 'zarr': only torch_dist and torch"):
        open_torch_dist(tree)
    sign.unlink()
    assert open_torch_dist(tree).iteration == 1000  # the first versions left common.pt alone
    (tree / "common.pt").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*metadata\.json"):
        open_torch_dist(tree)


def change(tree: Path, edit: object) -> None:
    path = tree / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    edit(metadata)  # type: ignore[operator]
    path.write_bytes(pickle.dumps(metadata))


def assemble(tree: Path) -> object:
    return open_torch_dist(tree).assemble(parameters(CONFIG, 40))


def test_chunks_must_make_up_their_tensor(tree: Path) -> None:
    tensors = "state_dict_metadata"
    change(tree, lambda m: getattr(m, tensors)[FC1].chunks.append(ChunkStorageMetadata((0, 0, 0), (1, 128, 32))))
    with pytest.raises(CheckpointError, match="is not the tensor of shape"):
        assemble(tree)
    change(tree, lambda m: getattr(m, tensors)[FC1].chunks.clear())
    with pytest.raises(CheckpointError, match=r"decoder\.layers\.0\.mlp\.linear_fc1\.weight has no chunks"):
        assemble(tree)
    change(tree, lambda m: getattr(m, tensors).pop(FC1))
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.linear_fc1\.weight is missing"):
        assemble(tree)


def test_weights_of_other_models_are_told(tree: Path) -> None:
    change(
        tree, lambda m: m.state_dict_metadata.update({"decoder.layers.mlp.router.weight": m.state_dict_metadata[FC1]})
    )
    with pytest.raises(CheckpointError, match=r"weights that no GPT here has, such as decoder\.layers\.mlp\.router"):
        open_torch_dist(tree)


def test_the_same_weight_under_two_names(tree: Path) -> None:
    twin = "decoder.layers.0.mlp.linear_fc1.weight"
    change(tree, lambda m: m.state_dict_metadata.update({twin: m.state_dict_metadata[FC1]}))
    with pytest.raises(CheckpointError, match="twice, under different names"):
        open_torch_dist(tree)


def test_no_state_or_no_embeddings(tree: Path) -> None:
    torch.save([5], tree / "common.pt")
    with pytest.raises(CheckpointError, match="holds no state of a run"):
        open_torch_dist(tree)
    (tree / "common.pt").unlink()
    with pytest.raises(CheckpointError, match=r"neither common\.pt nor common_state"):
        open_torch_dist(tree)
    torch.save({"iteration": "x"}, tree / "common.pt")
    with pytest.raises(CheckpointError, match="iteration is no number"):
        open_torch_dist(tree)
    change(tree, lambda m: m.state_dict_metadata.pop("embedding.word_embeddings.weight"))
    with pytest.raises(CheckpointError, match="holds no word embeddings"):
        open_torch_dist(tree)


def _save_cut(rank: int, world_size: int, directory: str) -> None:
    """Two tensor-parallel ranks save as Megatron lays it out: layers stacked, matrices cut, SwiGLU's halves apart."""
    state: dict[str, object] = {}
    for name, values in torch_dist_tensors(LLAMA_WEIGHTS, LLAMA).items():
        pieces = []
        if name.endswith(("linear_qkv.weight", "linear_fc1.weight", "linear_proj.weight", "linear_fc2.weight")):
            dim = 1 if "linear_qkv" in name or "linear_fc1" in name else 2
            parts = 4 if "linear_fc1" in name else 2
            extent = values.shape[dim] // parts
            for layer in range(values.shape[0]):
                for part in range(rank, parts, world_size):
                    offset = [layer, 0, 0]
                    offset[dim] = part * extent
                    piece = values[layer : layer + 1].narrow(dim, part * extent, extent).contiguous()
                    pieces.append(Shard.from_tensor_and_offsets(piece, offset, rank))
        state[name] = ShardedTensor._init_from_local_shards(pieces, values.shape) if pieces else values
    dcp.save(state, checkpoint_id=directory)


def test_shards_of_two_ranks(tmp_path: Path) -> None:
    directory = tmp_path / "iter_0001000"
    run_ranks(_save_cut, 2, directory=str(directory))
    assert len(list(directory.glob("*.distcp"))) >= 2
    torch.save({"args": arguments(LLAMA, tp=2), "iteration": 1000}, directory / "common.pt")
    finish_torch_dist(directory)
    require_same(tmp_path, LLAMA_WEIGHTS, LLAMA)
