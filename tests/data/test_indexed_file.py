# SPDX-License-Identifier: Apache-2.0
"""The reader against the golden bytes of the format, files beyond 32 bits, and every kind of damage."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from megatron_core.data.indexed_file import IndexedFile, exists
from megatron_core.data.indexed_format import HEADER, MAGIC, IndexHeader
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.errors import DataError

GOLDEN_IDX = bytes.fromhex(
    "4d4d494449445800000100000000000000080300000000000000040000000000000004000000030000000600000000000000000000000800000000"
    "0000000e000000000000000000000000000000010000000000000002000000000000000300000000000000"
)
GOLDEN_BIN = bytes.fromhex("010002000300000004000500000006000700080009000a000000")


def write_pair(folder: Path, index: bytes = GOLDEN_IDX, tokens: bytes = GOLDEN_BIN) -> str:
    prefix = str(folder / "golden")
    Path(prefix + ".idx").write_bytes(index)
    Path(prefix + ".bin").write_bytes(tokens)
    return prefix


def test_golden_bytes_are_read(tmp_path: Path) -> None:
    file = IndexedFile(write_pair(tmp_path))
    assert (file.num_sequences, file.num_documents, file.num_tokens, file.dtype) == (3, 3, 13, np.uint16)
    assert [file.read(i).tolist() for i in range(3)] == [[1, 2, 3, 0], [4, 5, 0], [6, 7, 8, 9, 10, 0]]
    assert file.read_tokens(2, 6).tolist() == [3, 0, 4, 5, 0, 6]
    assert file.read_tokens(13, 0).tolist() == []
    assert file.token_range(1, 3) == (4, 13)


def test_modes_of_multimodal_files_are_tolerated(tmp_path: Path) -> None:
    file = IndexedFile(write_pair(tmp_path, index=GOLDEN_IDX + b"\x00\x01\x00"))
    assert file.read(2).tolist() == [6, 7, 8, 9, 10, 0]


def test_pointers_beyond_32_bits(tmp_path: Path) -> None:
    """Three sequences of 2^30 int32 tokens, in a sparse file of 12 GiB, with a marker as the last token."""
    prefix, length = tmp_path / "huge", 2**30
    header = IndexHeader(dtype=np.dtype("<i4"), sequences=3, document_indices=4)
    body = np.array([length] * 3, "<i4").tobytes() + np.array([0, 4 * length, 8 * length], "<i8").tobytes()
    Path(f"{prefix}.idx").write_bytes(header.pack() + body + np.arange(4, dtype="<i8").tobytes())
    with open(f"{prefix}.bin", "wb") as tokens:
        tokens.seek(12 * length - 4)
        tokens.write(struct.pack("<i", 77))
    file = IndexedFile(prefix)
    assert file.pointers.tolist() == [0, 4294967296, 8589934592]
    assert file.num_tokens == 3 * length
    assert file.read_tokens(file.num_tokens - 2, 2).tolist() == [0, 77]


def test_opening_ten_million_documents_reads_only_the_ends(tmp_path: Path) -> None:
    """A sparse index whose middle is garbage opens, because only the ends of each section are looked at."""
    sequences = 10_000_000
    prefix = tmp_path / "many"
    header = IndexHeader(dtype=np.dtype("<u2"), sequences=sequences, document_indices=sequences + 1)
    with open(f"{prefix}.idx", "wb") as index:
        index.write(header.pack())
        index.seek(header.pointers_offset - 4)
        index.write(struct.pack("<i", 5))
        index.seek(header.documents_offset - 8)
        index.write(struct.pack("<q", 200))
        index.seek(header.size - 8)
        index.write(struct.pack("<q", sequences))
    Path(f"{prefix}.bin").write_bytes(bytes(210))
    assert IndexedFile(prefix).num_tokens == 105


@pytest.mark.parametrize(
    ("index", "tokens", "message"),
    [
        (b"XXXXXXXX" + GOLDEN_IDX[8:], GOLDEN_BIN, "not an .idx file"),
        (MAGIC + struct.pack("<Q", 2) + GOLDEN_IDX[17:], GOLDEN_BIN, "version 2"),
        (GOLDEN_IDX[:17] + b"\x09" + GOLDEN_IDX[18:], GOLDEN_BIN, "code 9"),
        (GOLDEN_IDX[:20], GOLDEN_BIN, "cut off"),
        (GOLDEN_IDX[:-8], GOLDEN_BIN, "cut off"),
        (GOLDEN_IDX, GOLDEN_BIN[:-2], "24 bytes, but"),
        (GOLDEN_IDX[:-8] + struct.pack("<q", 2), GOLDEN_BIN, "from 0 to 2"),
        (HEADER.pack(MAGIC, 1, 8, 0, 1) + bytes(8), b"", "no sequences"),
        (HEADER.pack(MAGIC, 1, 8, 0, 0), b"", "no document indices"),
    ],
)
def test_damage_is_named(tmp_path: Path, index: bytes, tokens: bytes, message: str) -> None:
    prefix = write_pair(tmp_path, index, tokens)
    with pytest.raises(DataError, match=message) as caught:
        IndexedFile(prefix)
    assert prefix in str(caught.value)


def test_missing_files_get_a_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        IndexedFile(tmp_path / "nothing")
    prefix = write_pair(tmp_path)
    with pytest.raises(DataError, match=r"without \.bin"):
        IndexedFile(prefix + ".bin")
    (tmp_path / "shop_text_document.idx").write_bytes(b"")
    with pytest.raises(DataError, match=r"did you mean .*shop_text_document"):
        IndexedFile(tmp_path / "shop")
    assert exists(prefix) and not exists(tmp_path / "nothing")


def test_a_file_that_shrinks_while_in_use_is_an_error_with_its_name(tmp_path: Path) -> None:
    prefix = str(tmp_path / "shrinking")
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        writer.add_document(np.arange(100))
    file = IndexedFile(prefix)
    os.truncate(prefix + ".bin", 20)
    with pytest.raises(DataError, match=r"shrinking\.bin: ends at byte 20"):
        file.read(0)
