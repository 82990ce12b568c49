# SPDX-License-Identifier: Apache-2.0
"""From a RankGrid to this rank's own process groups.

Each rank creates only the groups it belongs to (`use_local_synchronization`), in one fixed order of names. The usual
way, every rank creating every group of the world, takes minutes at thousands of ranks.
"""

import datetime
from collections.abc import Iterator

import torch
import torch.distributed as dist

from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import Group, ParallelContext
from megatron_core.parallel.device_queue import cuda_mark
from megatron_core.parallel.rank_grid import RankGrid


def group_members(grid: RankGrid, rank: int, kv_replicas: int = 1) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and ranks of each group of `rank`, in the order of creation.

    `kv_replicas` = tp / query groups where tp is larger, else 1: so many neighbours on tp hold the same kv heads.
    """
    yield "tp", grid.members(rank, "tp")
    tp_ranks = grid.members(rank, "tp")
    first = grid.coordinate(rank, "tp") // kv_replicas * kv_replicas
    yield "kv", tp_ranks[first : first + kv_replicas]
    yield "dp", grid.members(rank, "dp")
    pipeline = grid.members(rank, "pp")
    yield "pp", pipeline
    if rank in (pipeline[0], pipeline[-1]):
        yield "tied", tuple(sorted({*grid.members(pipeline[0], "dp"), *grid.members(pipeline[-1], "dp")}))
    yield "world", tuple(range(grid.world_size))


def create_context(
    grid: RankGrid,
    rank: int,
    device: torch.device,
    *,
    kv_replicas: int = 1,
    timeout_minutes: float = 10.0,
    log: CollectiveLog | None = None,
) -> ParallelContext:
    """Create this rank's groups over the initialised default process group and return its context.

    Groups with the same members share one communicator. The default group must span exactly `grid.world_size` ranks.
    log: of the rank's collectives; a new one if None.
    """
    if grid.world_size == 1:
        return ParallelContext(grid=grid, rank=rank, device=device)
    assert dist.get_world_size() == grid.world_size, f"{dist.get_world_size()} ranks run, the grid has {grid}"
    timeout = datetime.timedelta(minutes=timeout_minutes)
    handles: dict[tuple[int, ...], dist.ProcessGroup | None] = {tuple(range(grid.world_size)): dist.group.WORLD}
    groups: dict[str, Group] = {}
    log = log or CollectiveLog(mark=cuda_mark if device.type == "cuda" else None)
    for name, ranks in group_members(grid, rank, kv_replicas):
        if len(ranks) > 1 and ranks not in handles:
            handles[ranks] = dist.new_group(
                list(ranks), timeout=timeout, use_local_synchronization=True, group_desc=f"{name}:{ranks[0]}"
            )
        groups[name] = Group(name, ranks, ranks.index(rank), handles.get(ranks), log)
    if device.type == "cuda":
        # NCCL builds a communicator at its first use, which for p2p must be one that the whole group takes part in.
        all_reduce(torch.zeros(1, device=device), groups["pp"])
    return ParallelContext(grid=grid, rank=rank, device=device, groups=groups, log=log)
