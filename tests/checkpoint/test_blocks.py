# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.checkpoint.blocks import BLOCK_BYTES, checksum, count_blocks, read_blocks, whole_blocks
from megatron_core.checkpoint.manifest import Piece
from megatron_core.checkpoint.rectangle import whole
from megatron_core.errors import CheckpointError

MIB = 2**20
DATA = bytes(range(256)) * (10 * 4096)  # 10 MiB: blocks of 4, 4 and 2
HEADER = 100
PIECE = Piece(
    file="rank_00000.safetensors",
    offset=HEADER,
    nbytes=len(DATA),
    rectangle=whole((len(DATA),)),
    checksums=tuple(checksum(DATA[at : at + BLOCK_BYTES]) for at in range(0, len(DATA), BLOCK_BYTES)),
)


def read(start: int, stop: int, data: bytes = DATA) -> tuple[bytes, list[tuple[int, int]]]:
    calls = []

    def pread(offset: int, buffer: memoryview) -> None:
        calls.append((offset, len(buffer)))
        buffer[:] = data[offset - HEADER : offset - HEADER + len(buffer)]

    return bytes(read_blocks(pread, PIECE, start, stop, memoryview(bytearray(12 * MIB)))), calls


def test_reads_by_whole_blocks_at_once() -> None:
    assert read(5, 9) == (DATA[5:9], [(HEADER, 4 * MIB)])
    assert read(4 * MIB - 1, 4 * MIB + 1) == (DATA[4 * MIB - 1 : 4 * MIB + 1], [(HEADER, 8 * MIB)])
    assert read(9 * MIB, 10 * MIB) == (DATA[9 * MIB :], [(HEADER + 8 * MIB, 2 * MIB)])


def test_counts() -> None:
    assert [count_blocks(n) for n in (1, 4 * MIB, 4 * MIB + 1)] == [1, 1, 2]
    assert whole_blocks(4 * MIB, 8 * MIB, 100 * MIB) == (4 * MIB, 8 * MIB)


@pytest.mark.parametrize("at", [4 * MIB, 6 * MIB, 8 * MIB - 1])
def test_a_flipped_bit_is_named(at: int) -> None:
    damaged = DATA[:at] + bytes([DATA[at] ^ 4]) + DATA[at + 1 :]
    with pytest.raises(CheckpointError, match=r"rank_00000\.safetensors: damaged: block 1 .* bytes 4194404 to 8388708"):
        read(4 * MIB + 7, 4 * MIB + 8, damaged)
    assert read(0, 8, damaged)[0] == DATA[:8], "other blocks are not read"


def test_checksums_are_xxh3() -> None:
    assert checksum(b"") == "2d06800538d394c2"
