# SPDX-License-Identifier: Apache-2.0
"""Writer of `.bin/.idx` pairs, byte-identical to Megatron-LM's, in constant memory.

Tokens and lengths stream into temporary files; pointers are derived from the lengths at the end. The files get their
names only when both are complete and synced, so that an interrupted run leaves nothing that looks like a dataset.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.indexed_format import CODES, HEADER, IndexHeader, bin_path, idx_path
from megatron_core.errors import DataError

_BLOCK = 1 << 20
_LONGEST = 2**31 - 1


class IndexedWriter:
    """`with IndexedWriter(prefix, dtype) as writer: writer.add_document(tokens)`.

    Leaving the block normally puts the pair in place; leaving it by an exception removes every trace.
    Raises DataError when a sequence is too long for the format or a file cannot be made.
    """

    def __init__(self, prefix: str | Path, dtype: np.dtype) -> None:
        self.prefix = str(prefix)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        assert self.dtype in CODES, f"no code for tokens of type {dtype}"
        self.num_sequences = self.num_tokens = 0
        self.num_documents = 0
        self._temporary = [Path(f"{path}.{os.getpid()}.tmp") for path in (bin_path(prefix), idx_path(prefix))]
        try:
            bin_path(prefix).parent.mkdir(parents=True, exist_ok=True)
            self._documents = tempfile.TemporaryFile(dir=bin_path(prefix).parent)  # noqa: SIM115
            self._bin = open(self._temporary[0], "wb")  # noqa: SIM115
            self._idx = open(self._temporary[1], "w+b")  # noqa: SIM115
        except OSError as error:
            raise DataError(f"{error.filename or prefix}: cannot write: {error.strerror or error}") from error
        self._idx.write(bytes(HEADER.size))
        self._documents.write(bytes(8))

    def add_document(self, tokens: np.ndarray, lengths: Iterable[int] | None = None) -> None:
        """Append a document of one sequence, or of sequences of the given `lengths` (empty: a document without any)."""
        sizes = np.array([len(tokens)] if lengths is None else list(lengths), dtype=np.int64)
        self._add_sequences(tokens, sizes)
        self._add_document_ends(np.array([self.num_sequences], dtype="<i8"))

    def add_documents(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        """Append many documents of one sequence each: their tokens end to end, and the length of each."""
        first = self.num_sequences
        self._add_sequences(tokens, np.asarray(lengths, dtype=np.int64))
        self._add_document_ends(np.arange(first + 1, self.num_sequences + 1, dtype="<i8"))

    def append(self, source: IndexedFile) -> None:
        """Append all documents of another pair of the same token type."""
        if source.dtype != self.dtype:
            raise DataError(
                f"{source.prefix}: tokens of type {source.dtype.name} cannot join {self.prefix} "
                f"of type {self.dtype.name}; prepare both with one tokenizer"
            )
        first = self.num_sequences
        for start in range(0, source.num_tokens, _BLOCK):
            self._bin.write(source.read_tokens(start, min(_BLOCK, source.num_tokens - start)).data)
        for lengths in _blocks(source.lengths):
            self._idx.write(lengths.tobytes())
        self.num_sequences += source.num_sequences
        self.num_tokens += source.num_tokens
        for ends in _blocks(source.document_indices[1:]):
            self._add_document_ends(ends + first)

    def finish(self) -> None:
        """Complete both files and give them their names: .bin first, .idx last."""
        try:
            self._write_index_tail()
            for file in (self._bin, self._idx):
                file.flush()
                os.fsync(file.fileno())
            # An old index must not meet new tokens: it goes first.
            idx_path(self.prefix).unlink(missing_ok=True)
            os.replace(self._temporary[0], bin_path(self.prefix))
            os.replace(self._temporary[1], idx_path(self.prefix))
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close, and remove what did not get its name."""
        self._close()
        for path in self._temporary:
            path.unlink(missing_ok=True)

    def __enter__(self) -> "IndexedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.abandon()

    def _add_sequences(self, tokens: np.ndarray, lengths: np.ndarray) -> None:
        assert int(lengths.sum()) == len(tokens), (
            f"lengths add up to {int(lengths.sum())}, but there are {len(tokens)} tokens"
        )
        if len(lengths) and int(lengths.max()) > _LONGEST:
            raise DataError(
                f"{self.prefix}: a sequence of {int(lengths.max())} tokens; the format holds at most {_LONGEST}"
            )
        self._bin.write(np.ascontiguousarray(tokens, dtype=self.dtype).data)
        self._idx.write(lengths.astype("<i4").tobytes())
        self.num_sequences += len(lengths)
        self.num_tokens += len(tokens)

    def _add_document_ends(self, ends: np.ndarray) -> None:
        self._documents.write(ends.astype("<i8").tobytes())
        self.num_documents += len(ends)

    def _write_index_tail(self) -> None:
        """Pointers from the lengths, then the document indices, then the header, each block by block."""
        header = IndexHeader(dtype=self.dtype, sequences=self.num_sequences, document_indices=self.num_documents + 1)
        pointer = 0
        for position in range(0, self.num_sequences, _BLOCK):
            count = min(_BLOCK, self.num_sequences - position)
            self._idx.seek(HEADER.size + 4 * position)
            sizes = np.frombuffer(self._idx.read(4 * count), dtype="<i4").astype("<i8") * self.dtype.itemsize
            ends = pointer + np.cumsum(sizes)
            self._idx.seek(header.pointers_offset + 8 * position)
            self._idx.write((ends - sizes).astype("<i8").tobytes())
            pointer = int(ends[-1])
        self._idx.seek(header.documents_offset)
        self._documents.seek(0)
        while block := self._documents.read(8 * _BLOCK):
            self._idx.write(block)
        self._idx.seek(0)
        self._idx.write(header.pack())

    def _close(self) -> None:
        for file in (self._bin, self._idx, self._documents):
            file.close()


def merge(sources: Iterable[str | Path], prefix: str | Path) -> tuple[int, int]:
    """Write the documents of several pairs, in order, as one. Returns (documents, tokens)."""
    files = [IndexedFile(source) for source in sources]
    assert files, "nothing to merge"
    with IndexedWriter(prefix, files[0].dtype) as writer:
        for file in files:
            writer.append(file)
    return writer.num_documents, writer.num_tokens


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(array), _BLOCK):
        yield array[start : start + _BLOCK]
