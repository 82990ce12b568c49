# SPDX-License-Identifier: Apache-2.0
"""Arithmetic between a global rank and its coordinates on the mesh axes; no process group is involved.

Axes are ordered from the one whose neighbours are closest: tp varies fastest, so that the ranks of a tensor-parallel
group share a node, then cp, dp and pp (Megatron-LM's default order; Narayanan et al. 2021, section 3.2).
"""

from dataclasses import dataclass
from typing import Literal

Axis = Literal["tp", "cp", "dp", "pp"]
DEFAULT_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
TP_PP_DP_ORDER: tuple[Axis, ...] = ("tp", "cp", "pp", "dp")


@dataclass(frozen=True, kw_only=True)
class RankGrid:
    """Sizes of the axes and the order in which ranks run over them."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    order: tuple[Axis, ...] = DEFAULT_ORDER

    def __post_init__(self) -> None:
        assert sorted(self.order) == sorted(DEFAULT_ORDER), f"order must name each axis once, got {self.order}"
        assert min(self.tp, self.cp, self.dp, self.pp) >= 1, f"every axis needs at least one rank, got {self}"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    def size(self, axis: Axis) -> int:
        """Number of coordinates on one axis."""
        sizes: dict[Axis, int] = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}
        return sizes[axis]

    def _stride(self, axis: Axis) -> int:
        stride = 1
        for faster in self.order[: self.order.index(axis)]:
            stride *= self.size(faster)
        return stride

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Where `rank` stands on `axis`."""
        assert 0 <= rank < self.world_size, f"rank {rank} is outside a world of {self.world_size}"
        return rank // self._stride(axis) % self.size(axis)

    def rank(self, **coordinates: int) -> int:
        """The rank at these coordinates; an axis left out stands at 0."""
        return sum(coordinates.get(axis, 0) * self._stride(axis) for axis in self.order)

    def members(self, rank: int, *axes: Axis) -> tuple[int, ...]:
        """Ranks that agree with `rank` on every axis but those named, in increasing order: its group over `axes`."""
        ranks = [rank - sum(self.coordinate(rank, axis) * self._stride(axis) for axis in axes)]
        for axis in axes:
            stride = self._stride(axis)
            ranks = [base + step * stride for base in ranks for step in range(self.size(axis))]
        return tuple(sorted(ranks))

    def groups(self, *axes: Axis) -> list[tuple[int, ...]]:
        """All groups over `axes`: a partition of the world."""
        seen = dict.fromkeys(self.members(rank, *axes) for rank in range(self.world_size))
        return list(seen)
