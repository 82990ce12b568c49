# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes: named phases, nested as they like, with a cost only when they are asked for.

A timer above the configured level is a shared object that does nothing. On CUDA the device is waited for at both ends
of a phase, since kernels run later than Python; level 0 (the step itself) never waits, so that by default nothing is
slowed down. Each rank has its own times; taking the largest over ranks is the caller's collective.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


class Timers:
    """`with timers("optimizer"): ...` adds to that name; `take()` hands out the sums and starts anew."""

    def __init__(self, log_level: int, device: torch.device, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._log_level = log_level
        self._device = device
        self._now = now
        self._seconds: dict[str, float] = {}

    def __call__(self, name: str, level: int = 1) -> AbstractContextManager[None]:
        """Time the enclosed block under `name` if --timing-log-level is at least `level`."""
        return self._timed(name, wait=level > 0) if level <= self._log_level else nullcontext()

    def take(self) -> dict[str, float]:
        """Seconds by name since the last call, in the order in which the names first appeared."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    @contextmanager
    def _timed(self, name: str, wait: bool) -> Iterator[None]:
        begin = self._read_clock(wait)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._seconds[name] += self._read_clock(wait) - begin

    def _read_clock(self, wait: bool) -> float:
        if wait and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._now()
