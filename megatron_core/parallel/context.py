# SPDX-License-Identifier: Apache-2.0
"""ParallelContext: who this rank is and whom it talks to, frozen and passed in wherever it matters.

A group of one has no process group and makes every collective the identity, so that nothing asks for sizes first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.parallel.rank_grid import RankGrid


@dataclass(frozen=True)
class Group:
    """Some ranks that communicate, as one of them sees it."""

    name: str
    ranks: tuple[int, ...]
    coordinate: int
    """Position of this rank within `ranks`."""
    handle: dist.ProcessGroup | None = None
    """None for a group of one."""
    log: CollectiveLog = field(default_factory=CollectiveLog, compare=False, repr=False)
    """The rank's own, the same in all its groups."""

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)


@dataclass(frozen=True, kw_only=True)
class ParallelContext:
    """The mesh, this rank's place on it, its device and its own groups.

    Groups: tp, dp, pp along the axes; world; `tied` = the dp ranks of the first and of the last stage, who share a tied
    embedding; `kv` = the tensor-parallel ranks that hold the same key/value heads.
    """

    grid: RankGrid
    rank: int
    device: torch.device
    groups: Mapping[str, Group] = field(default_factory=dict)
    log: CollectiveLog = field(default_factory=CollectiveLog, compare=False, repr=False)
    """Where this rank stands among its collectives."""

    def group(self, name: str) -> Group:
        """The group of that name; a group of one where this rank is alone in it."""
        found = self.groups.get(name)
        return found if found is not None else Group(name, (self.rank,), 0, log=self.log)

    @property
    def tp(self) -> Group:
        """Ranks that share this rank's layers."""
        return self.group("tp")

    @property
    def dp(self) -> Group:
        """Ranks that hold the same weights and see other samples."""
        return self.group("dp")

    @property
    def pp(self) -> Group:
        """Ranks of this pipeline, one a stage."""
        return self.group("pp")

    @property
    def world(self) -> Group:
        """All ranks."""
        return self.group("world")

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank holds the first stage."""
        return self.pp.coordinate == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank holds the last stage."""
        return self.pp.coordinate == self.pp.size - 1


def single_process_context(device: torch.device | None = None) -> ParallelContext:
    """A world of one rank, with no process group at all."""
    return ParallelContext(grid=RankGrid(), rank=0, device=device or torch.device("cpu"))
