# SPDX-License-Identifier: Apache-2.0
"""Layout of Megatron-LM's `.idx` file, the index beside a `.bin` of raw tokens.

All integers are little-endian and nothing is padded, so the 64-bit sections may start at any byte:

    0   magic "MMIDIDX\\0\\0"      17  dtype code (u8)          34          lengths  [S] int32, tokens
    9   version = 1 (u64)        18  S, sequences (u64)       34 + 4S     pointers [S] int64, bytes into .bin
                                 26  D, documents + 1 (u64)   34 + 12S    document indices [D] int64
                                                              34 + 12S+8D modes [S] int8, multimodal files only
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megatron_core.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, np.dtype] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
SMALL_VOCABULARY = 65500
"""Vocabularies below this size are stored as uint16; the margin is Megatron-LM's."""


@dataclass(frozen=True, kw_only=True)
class IndexHeader:
    """The first 34 bytes of an `.idx` file."""

    dtype: np.dtype
    sequences: int
    document_indices: int

    @property
    def pointers_offset(self) -> int:
        """Byte where the pointers start."""
        return HEADER.size + 4 * self.sequences

    @property
    def documents_offset(self) -> int:
        """Byte where the document indices start."""
        return HEADER.size + 12 * self.sequences

    @property
    def size(self) -> int:
        """Bytes of the whole file, without modes."""
        return self.documents_offset + 8 * self.document_indices

    def pack(self) -> bytes:
        """The 34 bytes."""
        return HEADER.pack(MAGIC, VERSION, CODES[self.dtype], self.sequences, self.document_indices)


def parse_header(data: bytes, path: Path) -> IndexHeader:
    """Read a header. Raises DataError, naming `path`, when it is not one that this program can read."""
    if len(data) < HEADER.size:
        raise DataError(
            f"{path}: {len(data)} bytes, but the header of an index alone takes {HEADER.size}; file cut off?"
        )
    magic, version, code, sequences, document_indices = HEADER.unpack(data[: HEADER.size])
    if magic != MAGIC:
        raise DataError(f"{path}: not an .idx file (it starts with {magic!r}, not {MAGIC!r})")
    if version != VERSION:
        raise DataError(f"{path}: index version {version}; only version {VERSION} is known")
    if code not in DTYPES:
        raise DataError(f"{path}: token type code {code}; known codes are {sorted(DTYPES)}")
    return IndexHeader(dtype=DTYPES[code], sequences=sequences, document_indices=document_indices)


def token_dtype(vocab_size: int) -> np.dtype:
    """Smallest type that preprocessing uses for ids of this vocabulary: uint16 below 65,500, else int32."""
    return np.dtype("<u2") if vocab_size < SMALL_VOCABULARY else np.dtype("<i4")


def bin_path(prefix: str | Path) -> Path:
    """File of tokens of a dataset prefix."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """Index file of a dataset prefix."""
    return Path(f"{prefix}.idx")
