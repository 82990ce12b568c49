# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from megatron_core.checkpoint.manifest import DTYPES, DataFile, Manifest, Piece, RankFile, TensorEntry, merge
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError


def rank_file(rank: int, *names: str, dtype: str = "float32") -> RankFile:
    """A rank that wrote row `rank` of tensors of shape (2, 3)."""
    name, nbytes = f"rank_{rank:05d}.safetensors", 3 * DTYPES[dtype].itemsize
    pieces = [
        Piece(
            file=name,
            offset=16 + nbytes * index,
            nbytes=nbytes,
            rectangle=Rectangle((rank, 0), (rank + 1, 3)),
            checksums=("0" * 16,),
        )
        for index in range(len(names))
    ]
    return RankFile(
        file=DataFile(name=name, size=16 + nbytes * len(names), header_bytes=16, header_checksum="0" * 16),
        tensors=tuple(TensorEntry(name=n, shape=(2, 3), dtype=dtype, pieces=(p,)) for n, p in zip(names, pieces)),
    )


def merged() -> Manifest:
    return merge(7, [rank_file(1, "b", "a"), rank_file(0, "a", "b")], state={"step": 7}, config={})


def test_pieces_of_all_ranks_come_together_in_order() -> None:
    manifest = merged()
    assert [entry.name for entry in manifest.tensors] == ["a", "b"]
    assert [file.name for file in manifest.files] == ["rank_00000.safetensors", "rank_00001.safetensors"]
    for entry in manifest.tensors:
        assert [piece.rectangle.start for piece in entry.pieces] == [(0, 0), (1, 0)]
    assert (manifest.step, manifest.state, manifest.version) == (7, {"step": 7}, 1)


def test_sizes() -> None:
    entry = replace(merged().tensors[0], dtype="bfloat16")
    assert (entry.itemsize, entry.nbytes) == (2, 12)


def test_ranks_that_disagree() -> None:
    with pytest.raises(CheckpointError, match=r"a: float32 \(2, 3\) in rank_0.*, but float64 \(2, 3\) in"):
        merge(7, [rank_file(0, "a"), rank_file(1, "a", dtype="float64")], state={}, config={})
