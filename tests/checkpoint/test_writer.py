# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_core.checkpoint.blocks import BLOCK_BYTES, checksum
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.writer import Shard, dtype_name, rank_file_name, write_rank_file
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


def test_other_tools_read_the_file(tmp_path: Path) -> None:
    write_rank_file(tmp_path, "rank_00000.safetensors", small_checkpoint.shards()[0])
    found, tensors = load_file(tmp_path / "rank_00000.safetensors"), small_checkpoint.tensors()
    assert torch.equal(found["master/w"], tensors["master/w"][:, :4])
    assert torch.equal(found["master/w#1"], tensors["master/w"][:, 7:])
    assert torch.equal(found["model/w#1"], tensors["model/w"][:, 7:]) and found["model/w"].dtype == torch.bfloat16
    assert torch.equal(found["mask/w"], tensors["mask/w"][:, :4])
    assert torch.equal(found["adam_v/scalar"], torch.tensor(2.5)) and found["model/norm"].dtype == torch.float64
    assert len(found) == 8


def test_says_where_everything_lies(tmp_path: Path) -> None:
    values = torch.arange(3 * 2**20 // 2, dtype=torch.float32).view(3, -1)  # 6 MiB
    shard = Shard(name="w", shape=(9, 2**19), rectangle=Rectangle((3, 0), (6, 2**19)), values=values)
    written = write_rank_file(tmp_path, "rank_00007.safetensors", [shard])
    data = (tmp_path / "rank_00007.safetensors").read_bytes()
    (entry,) = written.tensors
    (piece,) = entry.pieces
    assert (entry.name, entry.shape, entry.dtype) == ("w", (9, 2**19), "float32")
    assert (written.file.size, piece.rectangle) == (len(data), shard.rectangle)
    assert data[piece.offset :] == values.numpy().tobytes()
    assert piece.offset == written.file.header_bytes and piece.offset % 8 == 0
    assert checksum(data[: piece.offset]) == written.file.header_checksum
    assert piece.checksums == (
        checksum(data[piece.offset : piece.offset + BLOCK_BYTES]),
        checksum(data[piece.offset + BLOCK_BYTES :]),
    )


def test_every_piece_is_aligned(tmp_path: Path) -> None:
    odd = [Shard(name=f"{d}", shape=(3,), rectangle=whole((3,)), values=torch.ones(3, dtype=d)) for d in DTYPES]
    for entry in write_rank_file(tmp_path, "x.safetensors", odd).tensors:
        assert entry.pieces[0].offset % entry.itemsize == 0, entry


DTYPES = [torch.bool, torch.float16, torch.float64, torch.bfloat16, torch.uint8, torch.int64, torch.float32]


def test_strided_values(tmp_path: Path) -> None:
    values = torch.arange(12.0).view(3, 4).t()
    write_rank_file(tmp_path, "x.safetensors", [Shard(name="w", shape=(4, 3), rectangle=whole((4, 3)), values=values)])
    assert torch.equal(load_file(tmp_path / "x.safetensors")["w"], values)


def test_a_rank_with_nothing_writes_a_file_too(tmp_path: Path) -> None:
    assert write_rank_file(tmp_path, "x.safetensors", []).file.size == 16
    assert load_file(tmp_path / "x.safetensors") == {}


def test_failures_name_the_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot write .*/gone/x\.safetensors: No such file"):
        write_rank_file(tmp_path / "gone", "x.safetensors", [])


def test_names() -> None:
    assert (rank_file_name(3), rank_file_name(123456, 2)) == (
        "rank_00003.safetensors",
        "rank_123456_2.safetensors",
    )
    assert dtype_name(torch.bfloat16) == "bfloat16"
