# SPDX-License-Identifier: Apache-2.0
"""Which rank holds up the others: the slowest and the fastest of a logging window, by the time they were busy.

All ranks take equally long for a step, since they wait for one another. What tells them apart is the time that they
did not wait: wall time less what the log of collectives counted as blocked. With gloo that is computing, reading and
saving. On CUDA the host blocks elsewhere, for the device: there the figures show slow hosts, but no slow devices.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import ParallelContext


@dataclass(frozen=True, kw_only=True)
class Stragglers:
    """One window; the fields are keys of metrics.jsonl."""

    slowest_rank: int
    """The rank that was busy longest, so the one that others wait for."""
    slowest_rank_s: float
    """Its busy seconds in the window."""
    fastest_rank: int
    """The rank that was busy least."""
    fastest_rank_s: float
    """Its busy seconds in the window."""


def find_stragglers(busy_s: Sequence[float]) -> Stragglers:
    """Slowest and fastest of one figure a rank, in rank order; of equals the lowest rank."""
    slowest, fastest = busy_s.index(max(busy_s)), busy_s.index(min(busy_s))
    return Stragglers(
        slowest_rank=slowest,
        slowest_rank_s=busy_s[slowest],
        fastest_rank=fastest,
        fastest_rank_s=busy_s[fastest],
    )


class BusyWindow:
    """Measures this rank's busy time from window to window."""

    def __init__(self, ctx: ParallelContext, *, now: Callable[[], float] = time.monotonic) -> None:
        """The first window begins here."""
        self._ctx, self._now = ctx, now
        self._begin, self._blocked = self._read()

    def close(self) -> Stragglers:
        """End the window, compare it over all ranks and begin the next. All ranks must call."""
        begin, blocked = self._read()
        busy = (begin - self._begin) - (blocked - self._blocked)
        self._begin, self._blocked = begin, blocked
        own = torch.tensor([busy], dtype=torch.float64, device=self._ctx.device)
        return find_stragglers(all_gather(own, self._ctx.world).tolist())

    def _read(self) -> tuple[float, float]:
        return self._now(), sum(self._ctx.log.blocked_s().values())
