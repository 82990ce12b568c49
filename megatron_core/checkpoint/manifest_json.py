# SPDX-License-Identifier: Apache-2.0
"""A manifest as JSON text, and back from text that nobody vouches for.

Parsing takes exactly the expected keys and types and allocates nothing by declared sizes. Every fault is a one-line
CheckpointError.
"""

from typing import Any

from megatron_core.checkpoint.json_record import Record, text_of
from megatron_core.checkpoint.manifest import VERSION, DataFile, Manifest, Piece, RankFile, TensorEntry
from megatron_core.checkpoint.manifest_check import check_manifest
from megatron_core.checkpoint.plain import quote
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.checkpoint.sealed_json import seal, unseal
from megatron_core.errors import CheckpointError


def encode_manifest(manifest: Manifest) -> bytes:
    """Checked and written; the same manifest always gives the same bytes."""
    check_manifest(manifest)
    return seal(
        {
            "version": manifest.version,
            "step": manifest.step,
            "files": [_file_json(file) for file in manifest.files],
            "tensors": [_tensor_json(entry) for entry in manifest.tensors],
            "state": manifest.state,
            "config": manifest.config,
        }
    )


def decode_manifest(text: bytes) -> Manifest:
    """The manifest of a text. Raises CheckpointError unless it is whole and makes sense."""
    record = Record("the manifest", unseal(text))
    version = record.integer("version")
    if version != VERSION:
        raise CheckpointError(f"format version {version}, but this program reads version {VERSION} only")
    record.has_exactly("version", "step", "files", "tensors", "state", "config")
    manifest = Manifest(
        version=version,
        step=record.integer("step"),
        files=tuple(_file(item, f"file {index}") for index, item in enumerate(record.array("files"))),
        tensors=tuple(_tensor(item, f"tensor {index}") for index, item in enumerate(record.array("tensors"))),
        state=record.mapping("state"),
        config=record.mapping("config"),
    )
    check_manifest(manifest)
    return manifest


def encode_rank_file(written: RankFile) -> bytes:
    """What one rank wrote, to be sent to the rank that writes the manifest."""
    return seal({"file": _file_json(written.file), "tensors": [_tensor_json(entry) for entry in written.tensors]})


def decode_rank_file(text: bytes) -> RankFile:
    """Back from `encode_rank_file`; checked once merged."""
    record = Record("a rank's part", unseal(text))
    record.has_exactly("file", "tensors")
    return RankFile(
        file=_file(record.value("file"), "file"),
        tensors=tuple(_tensor(item, f"tensor {index}") for index, item in enumerate(record.array("tensors"))),
    )


def _file_json(file: DataFile) -> dict[str, Any]:
    return {
        "name": file.name,
        "size": file.size,
        "header_bytes": file.header_bytes,
        "header_checksum": file.header_checksum,
    }


def _file(value: object, where: str) -> DataFile:
    record = Record(where, value)
    record.has_exactly("name", "size", "header_bytes", "header_checksum")
    return DataFile(
        name=record.text("name"),
        size=record.integer("size"),
        header_bytes=record.integer("header_bytes"),
        header_checksum=record.text("header_checksum"),
    )


def _tensor_json(entry: TensorEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "shape": list(entry.shape),
        "dtype": entry.dtype,
        "pieces": [
            {
                "file": piece.file,
                "offset": piece.offset,
                "nbytes": piece.nbytes,
                "start": list(piece.rectangle.start),
                "stop": list(piece.rectangle.stop),
                "checksums": list(piece.checksums),
            }
            for piece in entry.pieces
        ],
    }


def _tensor(value: object, where: str) -> TensorEntry:
    record = Record(where, value)
    record.has_exactly("name", "shape", "dtype", "pieces")
    name = record.text("name")
    where = f"tensor {quote(name)[1:-1]}"
    return TensorEntry(
        name=name,
        shape=record.integers("shape"),
        dtype=record.text("dtype"),
        pieces=tuple(_piece(item, f"{where}: piece {index}") for index, item in enumerate(record.array("pieces"))),
    )


def _piece(value: object, where: str) -> Piece:
    record = Record(where, value)
    record.has_exactly("file", "offset", "nbytes", "start", "stop", "checksums")
    start, stop = record.integers("start"), record.integers("stop")
    if len(start) != len(stop):
        raise CheckpointError(f"{where}: start has {len(start)} dims, stop has {len(stop)}")
    return Piece(
        file=record.text("file"),
        offset=record.integer("offset"),
        nbytes=record.integer("nbytes"),
        rectangle=Rectangle(start, stop),
        checksums=tuple(text_of(item, f"{where}: checksum") for item in record.array("checksums")),
    )
