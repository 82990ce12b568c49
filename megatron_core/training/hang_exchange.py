# SPDX-License-Identifier: Apache-2.0
"""What the survivors of a stuck job tell one another through the store, since collectives no longer work.

Every rank puts down where it stands. The lowest that did collects the answers and leaves each rank its sentence, so
that a rank reads two keys and not those of all others: thousands of ranks talk to one store.
"""

import time
from collections.abc import Callable

import torch.distributed as dist

from megatron_core.training.hang_report import HangReport, Standing, decode, encode, hang_report

_HANG, _ANSWERS, _READ, _OVER = "watchdog/hang", "watchdog/answers", "watchdog/read", "watchdog/over"
_POLLS, _SHORTEST_POLL_S = 20, 0.05


def hang_was_announced(store: dist.Store) -> bool:
    """Whether some rank has found the job stuck."""
    return bool(store.check([_HANG]))


def exchange(
    store: dist.Store, rank: int, world_size: int, standing: Standing, *, grace_s: float, tell: Callable[[str], None]
) -> None:
    """Announce the hang, answer, and `tell` what was found: the own sentence, and on the lowest survivor the verdict.

    Ranks get `grace_s` seconds to answer, then as long to read. Nobody returns before all have read or that time is
    over: the first process that ends may take the store, or by its launcher all others, with it. Raises RuntimeError
    (torch's DistError) where the store is gone, and blocks where it is stopped.
    """
    store.set(_HANG, str(rank))
    store.set(_answer(rank), encode(standing))
    store.add(_ANSWERS, 1)
    if rank == 0:
        _wait(lambda: store.add(_ANSWERS, 0) >= world_size, grace_s)
    else:
        _wait(lambda: store.check([_line(rank)]), grace_s)
    lowest = next(other for other in range(rank + 1) if store.check([_answer(other)]))
    if lowest == rank:
        report = _collect(store, world_size)
        tell(f"{report.lines[rank]}\nverdict: {report.verdict}")
        for other, line in report.lines.items():
            store.set(_line(other), line)
        store.add(_READ, 1)
        _wait(lambda: store.add(_READ, 0) >= len(report.lines), grace_s)
        store.set(_OVER, "")
        return
    if _wait(lambda: store.check([_line(rank)]), grace_s):
        tell(store.get(_line(rank)).decode())
    store.add(_READ, 1)
    _wait(lambda: store.check([_OVER]), grace_s)


def _collect(store: dist.Store, world_size: int) -> HangReport:
    answered = [rank for rank in range(world_size) if store.check([_answer(rank)])]
    return hang_report({rank: decode(store.get(_answer(rank)).decode()) for rank in answered}, world_size)


def _answer(rank: int) -> str:
    return f"watchdog/answer/{rank}"


def _line(rank: int) -> str:
    return f"watchdog/line/{rank}"


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(max(seconds / _POLLS, _SHORTEST_POLL_S))
    return True
