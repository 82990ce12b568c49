# SPDX-License-Identifier: Apache-2.0
"""Writes what one rank saves as one safetensors file, which other tools can read too, and says where everything lies.

A tensor's first rectangle in a file has the tensor's name as its key, further ones "name#1", "name#2", …
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_core.checkpoint.blocks import BLOCK_BYTES, checksum
from megatron_core.checkpoint.files import write_file
from megatron_core.checkpoint.manifest import DTYPES, DataFile, Piece, RankFile, TensorEntry
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.checkpoint.safetensors_header import encode_header


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One rectangle of a global tensor, with its values."""

    name: str
    shape: tuple[int, ...]
    """Shape of the global tensor."""
    rectangle: Rectangle
    values: torch.Tensor
    """Of the rectangle's shape, on any device."""


def rank_file_name(rank: int, attempt: int = 0) -> str:
    """File of one rank. `attempt` > 0 where the directory already holds a checkpoint of the same step."""
    return f"rank_{rank:05d}.safetensors" if attempt == 0 else f"rank_{rank:05d}_{attempt}.safetensors"


def write_rank_file(directory: Path, name: str, shards: Sequence[Shard]) -> RankFile:
    """Write and fsync <directory>/<name>, a new file, and return where its pieces lie, with their checksums.

    Raises CheckpointError with path and reason where the disk refuses.
    """
    for shard in shards:
        assert shard.rectangle.volume, f"{shard.name}: {shard.rectangle} is empty"
        assert shard.values.shape == shard.rectangle.shape, f"{shard.name}: {shard.values.shape} at {shard.rectangle}"
    # Wide elements first: every piece is then aligned to its itemsize, as safetensors itself writes them.
    shards = sorted(shards, key=lambda shard: -shard.values.element_size())
    header = _header(shards)
    checksums: list[list[str]] = [[] for _ in shards]
    write_file(directory / name, _chunks(header, shards, checksums))
    tensors: dict[str, list[Piece]] = {}
    offset = len(header)
    for shard, found in zip(shards, checksums):
        piece = Piece(
            file=name, offset=offset, nbytes=shard.values.nbytes, rectangle=shard.rectangle, checksums=tuple(found)
        )
        tensors.setdefault(shard.name, []).append(piece)
        offset += piece.nbytes
    first = {shard.name: shard for shard in reversed(shards)}
    return RankFile(
        file=DataFile(name=name, size=offset, header_bytes=len(header), header_checksum=checksum(header)),
        tensors=tuple(
            TensorEntry(
                name=key, shape=first[key].shape, dtype=dtype_name(first[key].values.dtype), pieces=tuple(pieces)
            )
            for key, pieces in tensors.items()
        ),
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype in a manifest."""
    name = str(dtype).removeprefix("torch.")
    assert name in DTYPES, f"{dtype} has no place in a checkpoint"
    return name


def _chunks(header: bytes, shards: Sequence[Shard], checksums: Sequence[list[str]]) -> Iterator[bytes | memoryview]:
    """The file from its first byte to its last; fills `checksums` on the way, while each block is in the cache."""
    yield header
    for shard, found in zip(shards, checksums):
        values = shard.values.detach().cpu().reshape(-1).view(torch.uint8)
        data = values.numpy().data
        for start in range(0, len(data), BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            found.append(checksum(block))
            yield block


def _header(shards: Sequence[Shard]) -> bytes:
    count: dict[str, int] = {}
    entries = []
    for shard in shards:
        number = count[shard.name] = count.get(shard.name, -1) + 1
        key = f"{shard.name}#{number}" if number else shard.name
        entries.append((key, dtype_name(shard.values.dtype), tuple(shard.values.shape), shard.values.nbytes))
    return encode_header(entries)
