# SPDX-License-Identifier: Apache-2.0
"""Corpus files -> chunks of whole documents, read once and in order, whatever the compression.

.jsonl .json            one JSON object a line           + .gz .zst .xz
.txt                    one document a file, or one a paragraph block (blank lines between)   + .gz .zst .xz
.parquet                one document a row (needs pyarrow)
"""

import gzip
import importlib.util
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import BinaryIO

import orjson
import zstandard

from megatron_core.errors import DataError

_READ = 1 << 20
_CHUNK = 1 << 21
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = (".gz", ".zst", ".xz")
_KINDS = {".jsonl": "jsonl", ".json": "jsonl", ".txt": "text", ".parquet": "parquet"}


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Whole documents of one file. `kind`: jsonl (lines), text (one document) or blocks (blank lines between)."""

    path: str
    kind: str
    first_line: int
    payload: bytes
    bytes_read: int
    """Bytes of the input files, as they are on disk, that have been read up to here."""


def find_inputs(patterns: Sequence[str]) -> list[Path]:
    """Files that names and glob patterns stand for, sorted within each pattern.

    Raises DataError when one stands for nothing or its type is unknown.
    """
    found: list[Path] = []
    for pattern in patterns:
        here = (
            [Path(pattern)] if Path(pattern).is_file() else sorted(Path(name) for name in glob(pattern, recursive=True))
        )
        here = [path for path in here if path.is_file()]
        if not here:
            raise DataError(f"--input {pattern}: no such file")
        found += here
    for path in found:
        _kind(path)
    return found


def read_chunks(paths: Sequence[Path], keys: Sequence[str], *, split_blank_lines: bool) -> Iterator[Chunk]:
    """Chunks of about 2 MiB, more where a single document is larger. Raises DataError when a file cannot be read."""
    before = 0
    for path in paths:
        kind = _kind(path)
        try:
            if kind == "parquet":
                yield from _parquet_chunks(path, keys, before)
            else:
                with open(path, "rb") as file:
                    yield from _plain_chunks(
                        path, "blocks" if kind == "text" and split_blank_lines else kind, file, before
                    )
        except (OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
            raise DataError(f"{path}: cannot read: {error}; is it damaged or cut off?") from error
        before += path.stat().st_size


def _plain_chunks(path: Path, kind: str, file: BinaryIO, before: int) -> Iterator[Chunk]:
    """Cuts the stream after the last complete line (or block) of each stretch."""
    line, held, first = 1, [], True
    size = 0
    boundary = {"jsonl": b"\n", "blocks": b"\n\n", "text": None}[kind]

    def chunk(payload: bytes) -> Chunk:
        return Chunk(path=str(path), kind=kind, first_line=line, payload=payload, bytes_read=before + file.tell())

    for block in _decompressed(path, file):
        if first:
            block, first = block.removeprefix(_BOM), False
        held.append(block)
        size += len(block)
        if size < _CHUNK or boundary is None:
            continue
        data = b"".join(held)
        cut = data.rfind(boundary)
        if cut < 0:
            held = [data]
            continue
        yield chunk(data[: cut + len(boundary)])
        line += data.count(b"\n", 0, cut + len(boundary))
        held = [data[cut + len(boundary) :]]
        size = len(held[0])
    if data := b"".join(held):
        yield chunk(data)


def _decompressed(path: Path, file: BinaryIO) -> Iterator[bytes]:
    if path.suffix == ".zst":
        yield from _zstd_blocks(file)
    elif path.suffix in (".gz", ".xz"):
        with gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else lzma.LZMAFile(file) as source:
            yield from iter(lambda: source.read(_READ), b"")
    else:
        yield from iter(lambda: file.read(_READ), b"")


def _zstd_blocks(file: BinaryIO) -> Iterator[bytes]:
    """All frames of the file. The library's own stream takes a file that is cut off for one that ends."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
    fresh = True
    while data := file.read(_READ):
        while data:
            if decompressor.eof:
                decompressor = zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
            if block := decompressor.decompress(data):
                yield block
            fresh = False
            data = decompressor.unused_data if decompressor.eof else b""
    if not fresh and not decompressor.eof:
        raise EOFError("the last zstd frame is incomplete")


def _parquet_chunks(path: Path, keys: Sequence[str], before: int) -> Iterator[Chunk]:
    """Rows as JSON lines, so that only one kind of document has to be understood further on."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{path}: parquet needs pyarrow, which is not installed: pip install pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    row = 1
    try:
        with ParquetFile(path) as table:
            columns = [key for key in keys if key in table.schema_arrow.names]
            for batch in table.iter_batches(batch_size=1024, columns=columns):
                payload = b"".join(orjson.dumps(record) + b"\n" for record in batch.to_pylist())
                yield Chunk(path=str(path), kind="jsonl", first_line=row, payload=payload, bytes_read=before)
                row += batch.num_rows
    except ArrowException as error:
        raise DataError(f"{path}: cannot read: {error}") from error


def _kind(path: Path) -> str:
    suffixes = path.suffixes
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    kind = _KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None or (kind == "parquet" and path.suffix != ".parquet"):
        raise DataError(
            f"--input {path}: unknown type of file; known are {', '.join(_KINDS)}, the first three also with one of "
            f"{', '.join(_COMPRESSED)} behind"
        )
    return kind
