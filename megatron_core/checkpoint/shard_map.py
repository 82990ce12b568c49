# SPDX-License-Identifier: Apache-2.0
"""Who writes which part of a tensor, and which bytes of a piece a reader needs. Pure.

Writing: what several ranks hold alike (dp replicas) is cut into blocks of rows and dealt over them, longest processing
time first (Graham 1969), so that each byte is written once and all finish together. Reading: one read serves many rows
as long as the gaps between them are smaller than a checksum block, which would be read anyway.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from megatron_core.checkpoint.blocks import BLOCK_BYTES
from megatron_core.checkpoint.rectangle import Rectangle, cut

PIECE_BYTES = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class Part:
    """A rectangle of a tensor to be written."""

    name: str
    """Name of the tensor in the checkpoint."""
    rectangle: Rectangle
    """Where it lies in the global tensor."""
    itemsize: int

    @property
    def nbytes(self) -> int:
        """Bytes to be written."""
        return self.rectangle.volume * self.itemsize


@dataclass(frozen=True)
class Read:
    """One read of a piece: its bytes [start, stop) hold all of a rectangle, and little else."""

    rectangle: Rectangle
    start: int
    stop: int


def deal(held: Sequence[Part], replicas: int, limit: int = PIECE_BYTES) -> list[list[Part]]:
    """What each of so many replicas writes of what all of them hold, in the order of `held`.

    All replicas compute the same. What each of them alone holds besides (ZeRO-1) is equally much and so no matter.
    """
    blocks = [
        replace(part, rectangle=block) for part in held for block in cut(part.rectangle, max(limit // part.itemsize, 1))
    ]
    loads = [(0, replica) for replica in range(replicas)]
    dealt: list[list[int]] = [[] for _ in loads]
    for index in sorted(range(len(blocks)), key=lambda index: -blocks[index].nbytes):
        load, replica = loads[0]
        dealt[replica].append(index)
        heapq.heapreplace(loads, (load + blocks[index].nbytes, replica))
    return [[blocks[index] for index in sorted(indices)] for indices in dealt]


def plan_reads(piece: Rectangle, wanted: Rectangle, itemsize: int, limit: int = PIECE_BYTES) -> Iterator[Read]:
    """Reads of a row-major piece that together hold `wanted` (inside it), each element once.

    A read is at most `limit` bytes and has no gap of a checksum block or more.
    """
    strides = row_major_strides(piece.shape, itemsize)
    span = _span(wanted, strides, itemsize)
    dim = wanted.first_long_dim()
    if dim is None or (span <= limit and not _has_gap(wanted, strides, itemsize)):
        first = sum((index - origin) * stride for index, origin, stride in zip(wanted.start, piece.start, strides))
        yield Read(wanted, first, first + span)
        return
    start, stop = wanted.start[dim], wanted.stop[dim]
    row = wanted.rows(dim, start, start + 1)
    rows = 1
    if not _has_gap(wanted, strides, itemsize):
        rows = max((limit - _span(row, strides, itemsize)) // strides[dim] + 1, 1)
    for at in range(start, stop, rows):
        yield from plan_reads(piece, wanted.rows(dim, at, min(at + rows, stop)), itemsize, limit)


def row_major_strides(shape: Sequence[int], itemsize: int) -> list[int]:
    """Bytes from one index to the next along each dim, row-major."""
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return strides[::-1] if shape else []


def _span(wanted: Rectangle, strides: Sequence[int], itemsize: int) -> int:
    """Bytes from the first element to the end of the last."""
    return sum((extent - 1) * stride for extent, stride in zip(wanted.shape, strides)) + itemsize


def _has_gap(wanted: Rectangle, strides: Sequence[int], itemsize: int) -> bool:
    """Whether some two neighbouring rows leave a checksum block or more between them."""
    inner = itemsize
    for extent, stride in zip(reversed(wanted.shape), reversed(strides)):
        if extent > 1 and stride - inner >= BLOCK_BYTES:
            return True
        inner += (extent - 1) * stride
    return False
