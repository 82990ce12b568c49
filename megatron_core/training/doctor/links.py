# SPDX-License-Identifier: Apache-2.0
"""How fast the ranks of each axis talk: an all-reduce, and a ring in which each sends to the next.

All groups of an axis work at the same time, as in training, so that what they share is shared here too.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from megatron_core.parallel.collectives import all_reduce, barrier, exchange_async
from megatron_core.parallel.context import Group, ParallelContext
from megatron_core.training.doctor.exchange import Exchange

AXES = ("tp", "dp", "pp", "world")
Operation = Literal["all_reduce", "ring"]
_WARM_UP = 2  # the first use of a communicator builds it
_SMALL_BYTES, _SMALL_ROUNDS, _LARGE_ROUNDS = 2**16, 20, 5


@dataclass(frozen=True, kw_only=True)
class LinkTime:
    """One operation of one group."""

    axis: str
    operation: Operation
    nbytes: int
    ranks: tuple[int, ...]
    seconds: float
    """Median time of a round, of the group's slowest rank."""

    @property
    def bytes_per_s(self) -> float:
        """What a link carries: of an all-reduce, as a ring would (2 (n - 1) / n times the data)."""
        n = len(self.ranks)
        return self.nbytes / self.seconds * (2 * (n - 1) / n if self.operation == "all_reduce" else 1)


def measured_axes(ctx: ParallelContext) -> list[str]:
    """Axes with several ranks; the world only where it is more than one of them. The same on all ranks."""
    axes = [axis for axis in AXES[:-1] if ctx.group(axis).size > 1]
    alone = any(ctx.group(axis).size == ctx.world.size for axis in axes)
    return axes if alone or ctx.world.size == 1 else [*axes, AXES[-1]]


def measure_links(
    ctx: ParallelContext, exchange: Exchange, sizes: Sequence[int], say: Callable[[str], None]
) -> list[LinkTime] | None:
    """Times of all groups of all axes at each size in bytes, on rank 0; None elsewhere. All ranks call.

    `say` hears what is being measured.
    """
    found: list[LinkTime] = []
    for axis in measured_axes(ctx):
        group = ctx.group(axis)
        for operation in ("all_reduce", "ring"):
            for nbytes in sizes:
                say(f"measuring {axis} {operation} of {nbytes:,} bytes")
                barrier(ctx.world)
                seconds = _seconds(operation, group, nbytes, ctx.device)
                told = exchange.gather(f"links/{axis}/{operation}/{nbytes}", [list(group.ranks), seconds])
                if told is not None:
                    found += _by_group(axis, operation, nbytes, told)
    return found if ctx.rank == 0 else None


def _by_group(axis: str, operation: Operation, nbytes: int, told: Sequence[Any]) -> list[LinkTime]:
    slowest: dict[tuple[int, ...], float] = {}
    for ranks, seconds in told:
        slowest[tuple(ranks)] = max(seconds, slowest.get(tuple(ranks), 0.0))
    return [
        LinkTime(axis=axis, operation=operation, nbytes=nbytes, ranks=ranks, seconds=seconds)
        for ranks, seconds in slowest.items()
    ]


def _seconds(operation: Operation, group: Group, nbytes: int, device: torch.device) -> float:
    count = max(nbytes // 4, 1)
    data, received = torch.zeros(count, device=device), torch.zeros(count, device=device)
    rounds = _SMALL_ROUNDS if nbytes <= _SMALL_BYTES else _LARGE_ROUNDS
    times = []
    for _ in range(_WARM_UP + rounds):
        started = time.perf_counter()
        if operation == "all_reduce":
            all_reduce(data, group)
        else:
            _ring(data, received, group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return statistics.median(times[_WARM_UP:])  # a round that something else disturbed does not count


def _ring(data: torch.Tensor, received: torch.Tensor, group: Group) -> None:
    following, before = (group.coordinate + 1) % group.size, (group.coordinate - 1) % group.size
    for work in exchange_async([(True, following, data), (False, before, received)], group):
        work.wait()
