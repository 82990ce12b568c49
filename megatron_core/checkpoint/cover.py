# SPDX-License-Identifier: Apache-2.0
"""Whether rectangles overlap, without comparing each with each.

Checkpoint pieces come from nested straight cuts, so a set falls apart again along some dim where no rectangle crosses a
boundary; what does not fall apart is swept. With equal volumes, no overlap means an exact cover. Pure.
"""

from collections.abc import Sequence

from megatron_core.checkpoint.rectangle import Rectangle


def find_overlap(rectangles: Sequence[Rectangle]) -> tuple[Rectangle, Rectangle] | None:
    """Two of the rectangles (of at least one dim) that share an element, or None."""
    groups = [list(rectangles)]
    while groups:
        group = groups.pop()
        if len(group) < 2:
            continue
        parts = _fall_apart(group)
        if len(parts) > 1:
            groups.extend(parts)
        elif pair := _sweep(group):
            return pair
    return None


def _fall_apart(group: list[Rectangle]) -> list[list[Rectangle]]:
    """The group cut at every boundary that no member crosses, along the first dim that has one."""
    for dim in range(len(group[0].start)):
        parts = _fall_apart_along(dim, group)
        if len(parts) > 1:
            return parts
    return [group]


def _fall_apart_along(dim: int, group: list[Rectangle]) -> list[list[Rectangle]]:
    parts: list[list[Rectangle]] = []
    reach = -1
    for member in sorted(group, key=lambda rectangle: rectangle.start[dim]):
        if member.start[dim] >= reach:
            parts.append([])
        parts[-1].append(member)
        reach = max(reach, member.stop[dim])
    return parts


def _sweep(group: list[Rectangle]) -> tuple[Rectangle, Rectangle] | None:
    active: list[Rectangle] = []
    for member in sorted(group):
        active = [other for other in active if other.stop[0] > member.start[0]]
        for other in active:
            if member.intersection(other) is not None:
                return other, member
        active.append(member)
    return None
