# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds: every tensor by its global name and shape, in rectangular pieces, each somewhere in a file.

Names: "model/layers.0.mlp.up.weight" for weights, "master/…", "adam_m/…", "adam_v/…" for the optimizer. Nothing here
knows a layout. Records only; `manifest_check` says whether they make sense, `manifest_json` writes and parses them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError

VERSION = 1
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class StoredType:
    """A dtype as it lies in a file, little-endian."""

    code: str
    """Its name in safetensors."""
    itemsize: int
    """Bytes an element."""


DTYPES: Mapping[str, StoredType] = {
    "float64": StoredType("F64", 8),
    "float32": StoredType("F32", 4),
    "bfloat16": StoredType("BF16", 2),
    "float16": StoredType("F16", 2),
    "int64": StoredType("I64", 8),
    "int32": StoredType("I32", 4),
    "uint8": StoredType("U8", 1),
    "bool": StoredType("BOOL", 1),
}
"""By torch's name."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One rectangle of a tensor, row-major and contiguous in a file."""

    file: str
    offset: int
    """First byte in the file."""
    nbytes: int
    rectangle: Rectangle
    checksums: tuple[str, ...]
    """xxh3 (64 bit, hexadecimal) of each 4 MiB block of the piece, the last one shorter."""


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor."""

    name: str
    shape: tuple[int, ...]
    """Global shape, with the true vocabulary."""
    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return DTYPES[self.dtype].itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One safetensors file, whose header is checked as a whole and the rest by pieces."""

    name: str
    size: int
    """Bytes of the file; its pieces fill it from the header to the end."""
    header_bytes: int
    """Bytes before the first piece."""
    header_checksum: str


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """What one rank wrote: its file, and of each tensor the pieces in it."""

    file: DataFile
    tensors: tuple[TensorEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole checkpoint."""

    step: int
    tensors: tuple[TensorEntry, ...]
    """In order of name."""
    files: tuple[DataFile, ...]
    state: Mapping[str, Any]
    """Scalars of the run, as JSON."""
    config: Mapping[str, Any]
    """The resolved config of the run that saved it, as JSON."""
    version: int = VERSION


def merge(step: int, written: Iterable[RankFile], *, state: Mapping[str, Any], config: Mapping[str, Any]) -> Manifest:
    """The manifest of what all ranks wrote. Raises CheckpointError where two ranks disagree about a tensor.

    Whether all bytes are there is `manifest_check.check_manifest`'s question.
    """
    tensors: dict[str, TensorEntry] = {}
    pieces: dict[str, list[Piece]] = {}
    files = []
    for rank_file in written:
        files.append(rank_file.file)
        for entry in rank_file.tensors:
            first = tensors.setdefault(entry.name, entry)
            if (first.shape, first.dtype) != (entry.shape, entry.dtype):
                raise CheckpointError(
                    f"{entry.name}: {first.dtype} {first.shape} in {first.pieces[0].file}, but "
                    f"{entry.dtype} {entry.shape} in {rank_file.file.name}"
                )
            pieces.setdefault(entry.name, []).extend(entry.pieces)
    return Manifest(
        step=step,
        tensors=tuple(
            replace(tensors[name], pieces=tuple(sorted(pieces[name], key=lambda piece: piece.rectangle)))
            for name in sorted(tensors)
        ),
        files=tuple(sorted(files, key=lambda file: file.name)),
        state=state,
        config=config,
    )
