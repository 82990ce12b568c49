# SPDX-License-Identifier: Apache-2.0
"""Whether a manifest makes sense by itself, before any file of it is opened and anything of its sizes is allocated.

Each tensor is covered by its pieces exactly once, each file is filled by pieces exactly once, names lead nowhere else.
Every fault is a one-line CheckpointError that names the tensor or file.
"""

import math
import re
from collections.abc import Mapping
from itertools import pairwise

from megatron_core.checkpoint.blocks import count_blocks
from megatron_core.checkpoint.cover import find_overlap
from megatron_core.checkpoint.manifest import DTYPES, VERSION, DataFile, Manifest, Piece, TensorEntry
from megatron_core.checkpoint.plain import check_plain, quote
from megatron_core.errors import CheckpointError

TENSOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,511}", re.ASCII)
DATA_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\.safetensors", re.ASCII)
CHECKSUM = re.compile(r"[0-9a-f]{16}")
_MAX_BYTES = 2**62
_MAX_DIMS = 8
_MAX_HEADER_BYTES = 2**25


def check_manifest(manifest: Manifest) -> None:
    """Raise CheckpointError at the first thing that is wrong."""
    if manifest.version != VERSION:
        raise CheckpointError(f"format version {manifest.version}, but this program reads version {VERSION} only")
    _check_files(manifest)
    files = {file.name: file for file in manifest.files}
    names: set[str] = set()
    for entry in manifest.tensors:
        if not TENSOR_NAME.fullmatch(entry.name):
            raise CheckpointError(f"{quote(entry.name)} is no tensor name")
        if entry.name in names:
            raise CheckpointError(f"tensor {entry.name} is listed twice")
        names.add(entry.name)
        _check_tensor(entry, files)
    _check_filled(manifest)
    check_plain("state", manifest.state)
    check_plain("config", manifest.config)


def _check_files(manifest: Manifest) -> None:
    names: set[str] = set()
    for file in manifest.files:
        if not DATA_FILE_NAME.fullmatch(file.name):
            raise CheckpointError(f"{quote(file.name)} is no plain name of a .safetensors file in the same directory")
        if file.name in names:
            raise CheckpointError(f"file {file.name} is listed twice")
        names.add(file.name)
        if not 8 < file.header_bytes <= min(file.size, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{file.name}: a header of {file.header_bytes} bytes in a file of {file.size}")


def _check_tensor(entry: TensorEntry, files: Mapping[str, DataFile]) -> None:
    name = entry.name
    if entry.dtype not in DTYPES:
        raise CheckpointError(f"tensor {name}: unknown dtype {quote(entry.dtype)}; known are {', '.join(DTYPES)}")
    if len(entry.shape) > _MAX_DIMS or any(not 1 <= extent <= _MAX_BYTES for extent in entry.shape):
        raise CheckpointError(f"tensor {name}: impossible shape {quote(entry.shape)}")
    if entry.nbytes > _MAX_BYTES:
        raise CheckpointError(f"tensor {name}: shape {quote(entry.shape)} has more bytes than any file")
    for piece in entry.pieces:
        _check_piece(entry, piece, files)
    volume, covered = math.prod(entry.shape), sum(piece.rectangle.volume for piece in entry.pieces)
    if pair := find_overlap([piece.rectangle for piece in entry.pieces]) if entry.shape else None:
        raise CheckpointError(f"tensor {name}: pieces {pair[0]} and {pair[1]} overlap")
    if covered != volume:
        raise CheckpointError(f"tensor {name}: its pieces hold {covered} of {volume} elements")


def _check_piece(entry: TensorEntry, piece: Piece, files: Mapping[str, DataFile]) -> None:
    where, rectangle = f"tensor {entry.name}: piece {piece.rectangle}", piece.rectangle
    if len(rectangle.start) != len(entry.shape) or any(
        not 0 <= a < b <= extent for a, b, extent in zip(rectangle.start, rectangle.stop, entry.shape)
    ):
        raise CheckpointError(f"{where} is no part of shape {entry.shape}")
    if piece.nbytes != rectangle.volume * entry.itemsize:
        raise CheckpointError(
            f"{where} has {piece.nbytes} bytes, but {rectangle.volume} elements of {entry.dtype} take "
            f"{rectangle.volume * entry.itemsize}"
        )
    file = files.get(piece.file)
    if file is None:
        raise CheckpointError(f"{where} is in {quote(piece.file)}, which is not among the files")
    if not file.header_bytes <= piece.offset <= file.size - piece.nbytes:
        raise CheckpointError(
            f"{where}: {piece.nbytes} bytes at {piece.offset} do not lie in {file.name}, whose data are bytes "
            f"{file.header_bytes} to {file.size}"
        )
    if len(piece.checksums) != count_blocks(piece.nbytes):
        raise CheckpointError(
            f"{where} has {len(piece.checksums)} checksums, but {piece.nbytes} bytes are {count_blocks(piece.nbytes)} "
            "blocks"
        )
    for checksum in piece.checksums:
        if not CHECKSUM.fullmatch(checksum):
            raise CheckpointError(f"{where}: {quote(checksum)} is no checksum")


def _check_filled(manifest: Manifest) -> None:
    """Pieces fill each file from its header to its end, so that no byte is unaccounted for or used twice."""
    spans: dict[str, list[tuple[int, int, str]]] = {
        file.name: [(file.header_bytes, file.header_bytes, "header"), (file.size, file.size, "end")]
        for file in manifest.files
    }
    for entry in manifest.tensors:
        for piece in entry.pieces:
            spans[piece.file].append((piece.offset, piece.offset + piece.nbytes, entry.name))
    for name, found in spans.items():
        for (_, end, before), (start, _, after) in pairwise(sorted(found)):
            if start < end:
                raise CheckpointError(f"{name}: {before} ends at byte {end}, but {after} begins at {start}")
            if start > end:
                raise CheckpointError(f"{name}: bytes {end} to {start} belong to no tensor")
