# SPDX-License-Identifier: Apache-2.0
"""Rectangles of a global tensor: the one shape in which a checkpoint speaks of a tensor's parts.

A tensor-parallel slice is one rectangle; a flat range of an n-d slice (an optimizer shard) is at most 2n - 1. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Rectangle:
    """The indices [start, stop) along each dim. That of a tensor without dims has one element."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each dim."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop))

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def intersection(self, other: "Rectangle") -> "Rectangle | None":
        """The elements in both, or None where there are none."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Rectangle(start, stop) if all(a < b for a, b in zip(start, stop)) else None

    def slices(self, origin: Sequence[int]) -> tuple[slice, ...]:
        """Index of this rectangle in a tensor whose first element is at `origin`."""
        return tuple(slice(a - o, b - o) for a, b, o in zip(self.start, self.stop, origin))

    def shifted(self, offset: Sequence[int]) -> "Rectangle":
        """The same rectangle, `offset` further along each dim."""
        return Rectangle(
            tuple(a + o for a, o in zip(self.start, offset)), tuple(b + o for b, o in zip(self.stop, offset))
        )

    def rows(self, dim: int, start: int, stop: int) -> "Rectangle":
        """The part with indices [start, stop) along `dim`."""
        return Rectangle(
            (*self.start[:dim], start, *self.start[dim + 1 :]), (*self.stop[:dim], stop, *self.stop[dim + 1 :])
        )

    def first_long_dim(self) -> int | None:
        """The first dim along which there is more than one index; None for a single element."""
        return next((dim for dim, extent in enumerate(self.shape) if extent > 1), None)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop)) + "]"


def whole(shape: Sequence[int]) -> Rectangle:
    """All of a tensor."""
    return Rectangle((0,) * len(shape), tuple(shape))


def cut(rectangle: Rectangle, limit: int) -> Iterator[Rectangle]:
    """Consecutive parts of at most `limit` (≥ 1) elements, contiguous in the rectangle's row-major order."""
    dim = rectangle.first_long_dim()
    if rectangle.volume <= limit or dim is None:
        yield rectangle
        return
    start, stop = rectangle.start[dim], rectangle.stop[dim]
    step = max(limit * (stop - start) // rectangle.volume, 1)
    for row in range(start, stop, step):
        yield from cut(rectangle.rows(dim, row, min(row + step, stop)), limit)


def flat_range_to_rectangles(shape: Sequence[int], start: int, stop: int) -> list[Rectangle]:
    """Elements [start, stop) of a tensor's row-major order, as at most 2n - 1 rectangles in that order."""
    assert 0 <= start <= stop <= math.prod(shape), f"[{start}, {stop}) is no range of a tensor of shape {tuple(shape)}"
    if start == stop:
        return []
    if not shape:
        return [Rectangle((), ())]
    row = math.prod(shape[1:])
    first_full, end_full = -(-start // row), stop // row
    if first_full > end_full:  # inside one row
        return _in_row(shape, end_full, start - end_full * row, stop - end_full * row)
    found = _in_row(shape, first_full - 1, start - (first_full - 1) * row, row) if start % row else []
    if first_full < end_full:
        found.append(whole(shape).rows(0, first_full, end_full))
    return found + (_in_row(shape, end_full, 0, stop % row) if stop % row else [])


def _in_row(shape: Sequence[int], index: int, start: int, stop: int) -> list[Rectangle]:
    inner = flat_range_to_rectangles(shape[1:], start, stop)
    return [Rectangle((index, *part.start), (index + 1, *part.stop)) for part in inner]
