# SPDX-License-Identifier: Apache-2.0
"""Checksums by block: a piece is hashed in blocks of 4 MiB, so that a partial read is checked as it is read."""

from collections.abc import Callable

import xxhash

from megatron_core.checkpoint.manifest import Piece
from megatron_core.errors import CheckpointError

BLOCK_BYTES = 4 * 2**20
Buffer = bytes | bytearray | memoryview
ReadExactly = Callable[[int, memoryview], None]
"""(byte of the file, buffer): fill the whole buffer from there."""


def checksum(data: Buffer) -> str:
    """xxh3 of 64 bits as 16 hexadecimal digits. It finds damage, not malice."""
    return xxhash.xxh3_64_hexdigest(data)


def count_blocks(nbytes: int) -> int:
    """Blocks of a piece of that many bytes."""
    return -(-nbytes // BLOCK_BYTES)


def whole_blocks(start: int, stop: int, nbytes: int) -> tuple[int, int]:
    """Bytes of a piece of `nbytes` that must be read to check [start, stop): up to block boundaries."""
    return start // BLOCK_BYTES * BLOCK_BYTES, min(count_blocks(stop) * BLOCK_BYTES, nbytes)


def read_blocks(read: ReadExactly, piece: Piece, start: int, stop: int, buffer: memoryview) -> memoryview:
    """Bytes [start, stop) of a piece, in one read of whole blocks, each of them checked.

    The result is a view into `buffer`, which must hold whole_blocks(start, stop). Raises CheckpointError that names
    file, block and bytes where a checksum does not match.
    """
    first, end = whole_blocks(start, stop, piece.nbytes)
    blocks = buffer[: end - first]
    read(piece.offset + first, blocks)
    for at in range(first, end, BLOCK_BYTES):
        block = blocks[at - first : at - first + BLOCK_BYTES]
        number = at // BLOCK_BYTES
        if checksum(block) != piece.checksums[number]:
            byte = piece.offset + at
            raise CheckpointError(
                f"{piece.file}: damaged: block {number} of a piece, bytes {byte} to {byte + len(block)}, does not "
                "match its checksum"
            )
    return blocks[start - first : stop - first]
