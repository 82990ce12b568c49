# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.writer import Shard
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint

TABLE = torch.arange(12.0).view(4, 3) / 7


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_checkpoint, "CONFIG", {"model": {"num_layers": 2, "vocab_size": 3}})


def save(root: Path, step: int = 3) -> Path:
    """A bf16 table with its fp32 master, and a norm without."""
    tensors = {
        "model/embedding.tokens.weight": TABLE.bfloat16(),
        "master/embedding.tokens.weight": TABLE,
        "model/final_norm.weight": torch.ones(3),
    }
    shards = [Shard(name=n, shape=tuple(t.shape), rectangle=whole(t.shape), values=t) for n, t in tensors.items()]
    small_checkpoint.save(root, step, [shards])
    return step_directory(root, step)


def test_weights_as_they_are_stored(tmp_path: Path) -> None:
    with StoredModel(save(tmp_path)) as stored:
        assert stored.names == ["embedding.tokens.weight", "final_norm.weight"]
        assert torch.equal(stored.read("embedding.tokens.weight"), TABLE.bfloat16())
        assert (stored.shape("final_norm.weight"), stored.dtype("final_norm.weight")) == ((3,), torch.float32)
        part = torch.empty(2, 2, dtype=torch.bfloat16)
        stored.fill(part.t(), "embedding.tokens.weight", Rectangle((1, 0), (3, 2)))
        assert torch.equal(part, TABLE.bfloat16()[1:3, :2].t())


def test_the_master_where_more_bits_are_wanted(tmp_path: Path) -> None:
    with StoredModel(save(tmp_path), torch.float32) as stored:
        assert torch.equal(stored.read("embedding.tokens.weight"), TABLE)
        assert torch.equal(stored.read("final_norm.weight"), torch.ones(3))
    with StoredModel(save(tmp_path, 4), torch.float16) as stored:
        assert torch.equal(stored.read("embedding.tokens.weight"), TABLE.bfloat16().half())


def test_the_newest_of_a_run_with_the_vocabulary_of_its_table(tmp_path: Path) -> None:
    save(tmp_path)
    save(tmp_path, 12)
    with StoredModel(tmp_path) as stored:
        assert stored.directory == step_directory(tmp_path, 12)
        assert (stored.model.num_layers, stored.model.vocab_size, stored.data.split) == (2, 4, None)


def test_what_is_not_there(tmp_path: Path) -> None:
    with StoredModel(save(tmp_path)) as stored, pytest.raises(CheckpointError, match=r"holds no weight head\.weight"):
        stored.read("head.weight")
    with pytest.raises(CheckpointError, match=r"empty holds no checkpoint"):
        StoredModel(tmp_path / "empty")
    small_checkpoint.save(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"holds no weight embedding.tokens.weight"):
        StoredModel(tmp_path / "other")
