# SPDX-License-Identifier: Apache-2.0
"""Which numbers of one of our tensors lie where in a tensor of another program: data that is read in both directions.

Both sides are rectangles, and from one to the other there is a permutation of dims. So either can be filled through a
view of the other, without a second copy of the tensor. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from megatron_core.checkpoint.rectangle import Rectangle, whole

Rows = tuple[int, int, int]
"""(dim, start, stop): indices [start, stop) along one dim."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A rectangle of our tensor, and the rectangle of theirs that holds the same numbers."""

    ours: str
    ours_shape: tuple[int, ...]
    ours_at: Rectangle
    theirs: str
    theirs_shape: tuple[int, ...]
    """As it lies in their file."""
    seen: tuple[int, ...]
    """The same with dims split, in the same row-major order."""
    seen_at: Rectangle
    order: tuple[int, ...]
    """Dims of `seen` in the order of ours; where a rectangle has one index along a dim, ours may lack it."""

    def part_of_theirs(self, theirs: torch.Tensor) -> torch.Tensor:
        """View of the rectangle of their whole tensor, in the shape of ours_at."""
        part = theirs.view(self.seen)[self.seen_at.slices((0,) * len(self.seen))]
        return part.permute(self.order).view(self.ours_at.shape)

    def part_of_ours(self, ours: torch.Tensor) -> torch.Tensor:
        """View of the rectangle of our whole tensor, in the shape of seen_at."""
        part = ours[self.ours_at.slices((0,) * len(self.ours_shape))]
        ordered = part.view([self.seen_at.shape[dim] for dim in self.order])
        return ordered.permute([self.order.index(dim) for dim in range(len(self.order))])


def link(
    ours: str,
    ours_shape: Sequence[int],
    theirs: str,
    theirs_shape: Sequence[int],
    *,
    ours_rows: Rows | None = None,
    seen: Sequence[int] | None = None,
    seen_rows: Rows | None = None,
    order: Sequence[int] | None = None,
) -> Link:
    """A link; what is left out is: all of a tensor, theirs seen in the shape of our part, dims in the same order."""
    ours_at = whole(ours_shape) if ours_rows is None else whole(ours_shape).rows(*ours_rows)
    seen = ours_at.shape if seen is None else tuple(seen)
    return Link(
        ours=ours,
        ours_shape=tuple(ours_shape),
        ours_at=ours_at,
        theirs=theirs,
        theirs_shape=tuple(theirs_shape),
        seen=seen,
        seen_at=whole(seen) if seen_rows is None else whole(seen).rows(*seen_rows),
        order=tuple(range(len(seen))) if order is None else tuple(order),
    )


def by_ours(links: Iterable[Link]) -> dict[str, list[Link]]:
    """Our tensors with the links that together fill each."""
    found: dict[str, list[Link]] = {}
    for item in links:
        found.setdefault(item.ours, []).append(item)
    return found


def by_theirs(links: Iterable[Link]) -> dict[str, list[Link]]:
    """Their tensors with the links that together fill each."""
    found: dict[str, list[Link]] = {}
    for item in links:
        found.setdefault(item.theirs, []).append(item)
    return found
