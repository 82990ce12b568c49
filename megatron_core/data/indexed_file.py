# SPDX-License-Identifier: Apache-2.0
"""Reader of a `.bin/.idx` pair as Megatron-LM writes it.

Opening touches the header and the two ends of each section, whatever the number of documents: lengths and pointers
are mapped, never copied. Tokens are read with positioned reads instead of a map, because a file that shrinks or a disk
that fails is then an error that names the file, where a map would kill the process with SIGBUS.
"""

import os
from pathlib import Path

import numpy as np

from megatron_core.data.indexed_format import HEADER, IndexHeader, bin_path, idx_path, parse_header
from megatron_core.errors import DataError


class IndexedFile:
    """Sequences of token ids on disk; safe to read from several threads.

    `lengths` [S] int32 (tokens), `pointers` [S] int64 (bytes into .bin) and `document_indices` [D] int64 are read-only
    maps of the index. Raises DataError when a file is missing or damaged.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        index, tokens = idx_path(prefix), bin_path(prefix)
        try:
            with open(index, "rb") as file:
                header = parse_header(file.read(HEADER.size), index)
            _check_index_size(index, header)
            mapped = np.memmap(index, mode="r", dtype=np.uint8)
            self._bin = open(tokens, "rb", buffering=0)  # noqa: SIM115 (kept open: one read a sample)
        except OSError as error:
            raise DataError(_cannot_open(prefix, error)) from error
        self.header = header
        self.lengths = _section(mapped, HEADER.size, "<i4", header.sequences)
        self.pointers = _section(mapped, header.pointers_offset, "<i8", header.sequences)
        self.document_indices = _section(mapped, header.documents_offset, "<i8", header.document_indices)
        bin_size = os.fstat(self._bin.fileno()).st_size
        self.num_tokens = bin_size // self.dtype.itemsize
        self._check_ends(bin_size)

    @property
    def dtype(self) -> np.dtype:
        """Type of the stored tokens."""
        return self.header.dtype

    @property
    def num_sequences(self) -> int:
        """Sequences S; preprocessing writes one a document."""
        return self.header.sequences

    @property
    def num_documents(self) -> int:
        """Documents, each a run of sequences."""
        return self.header.document_indices - 1

    def token_range(self, first: int, end: int) -> tuple[int, int]:
        """Where sequences [first, end) lie in the flat token stream: (start, end), in tokens. Reads two pointers."""
        assert 0 <= first <= end <= self.num_sequences, f"sequences [{first}, {end}) of {self.num_sequences}"
        return self._token_at(first), self._token_at(end)

    def read(self, sequence: int) -> np.ndarray:
        """Tokens of one sequence, in the stored type."""
        start, end = self.token_range(sequence, sequence + 1)
        return self.read_tokens(start, end - start)

    def read_tokens(self, start: int, count: int) -> np.ndarray:
        """Tokens [start, start + count) of the flat stream, across sequences, in the stored type.

        Raises DataError when the file no longer holds them.
        """
        assert start >= 0 and count >= 0 and start + count <= self.num_tokens, (
            f"[{start}, +{count}) of {self.num_tokens}"
        )
        tokens = np.empty(count, dtype=self.dtype)
        buffer = tokens.view(np.uint8).data
        offset, done = start * self.dtype.itemsize, 0
        while done < len(buffer):
            got = self._read_into(buffer[done:], offset + done)
            done += got
        return tokens

    def close(self) -> None:
        """Give back the file descriptor."""
        self._bin.close()

    def _read_into(self, buffer: memoryview, offset: int) -> int:
        try:
            got = os.preadv(self._bin.fileno(), [buffer], offset)
        except OSError as error:
            raise DataError(f"{bin_path(self.prefix)}: cannot read {len(buffer)} bytes at {offset}: {error}") from error
        if got == 0:
            raise DataError(
                f"{bin_path(self.prefix)}: ends at byte {offset}, {len(buffer)} bytes short; was it changed?"
            )
        return got

    def _token_at(self, sequence: int) -> int:
        if sequence == self.num_sequences:
            return self.num_tokens
        return int(self.pointers[sequence]) // self.dtype.itemsize

    def _check_ends(self, bin_size: int) -> None:
        """First and last entries of each section agree with the size of .bin."""
        index, tokens = idx_path(self.prefix), bin_path(self.prefix)
        if self.num_sequences == 0:
            raise DataError(f"{index}: holds no sequences; was the corpus empty?")
        expected = int(self.pointers[-1]) + int(self.lengths[-1]) * self.dtype.itemsize
        if expected != bin_size:
            raise DataError(
                f"{tokens}: {bin_size} bytes, but {index} describes {expected} "
                f"({self.num_sequences} sequences of {self.dtype.name}); they do not belong together or one was cut off"
            )
        first, last = int(self.document_indices[0]), int(self.document_indices[-1])
        if int(self.pointers[0]) != 0 or first != 0 or last != self.num_sequences:
            raise DataError(
                f"{index}: damaged: first pointer {int(self.pointers[0])} (not 0), document indices "
                f"from {first} to {last} (not from 0 to {self.num_sequences})"
            )


def exists(prefix: str | Path) -> bool:
    """Both files of the pair are there."""
    return bin_path(prefix).is_file() and idx_path(prefix).is_file()


def _check_index_size(path: Path, header: IndexHeader) -> None:
    actual = path.stat().st_size
    if header.document_indices < 1:
        raise DataError(f"{path}: damaged: no document indices")
    if actual not in (header.size, header.size + header.sequences):
        raise DataError(
            f"{path}: {actual} bytes, but {header.sequences} sequences and {header.document_indices} document indices "
            f"take {header.size}; file cut off or damaged"
        )


def _section(mapped: np.ndarray, offset: int, dtype: str, count: int) -> np.ndarray:
    return np.frombuffer(mapped, dtype=dtype, count=count, offset=offset)


def _cannot_open(prefix: str | Path, error: OSError) -> str:
    if not isinstance(error, FileNotFoundError):
        return f"{error.filename or prefix}: cannot open: {error.strerror or error}"
    hint = ""
    if Path(prefix).suffix in (".bin", ".idx"):
        hint = f"; give the prefix without {Path(prefix).suffix}"
    elif Path(f"{prefix}_text_document.idx").exists():
        hint = f"; did you mean {prefix}_text_document?"
    return f"{error.filename}: no such file (a dataset is a pair PREFIX.bin, PREFIX.idx){hint}"
