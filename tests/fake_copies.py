# SPDX-License-Identifier: Apache-2.0
"""Copies that happen as late, or as early, as the contract of `Copies` lets them."""

import functools
import threading

import torch

from megatron_core.parallel.collectives import Work
from megatron_core.parallel.host_copies import Wait


class Late:
    """A copy happens when somebody waits for it or for a later one, on any thread, or when the device shall see it."""

    def __init__(self) -> None:
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._started = self._done = 0
        self._lock = threading.Lock()

    def after_device(self) -> None:
        pass

    def after(self, work: Work) -> None:
        work.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        self._waiting.append((target, source))
        self._started += 1
        return functools.partial(self._copy_until, self._started)

    def before_device(self) -> None:
        self._copy_until(self._started)

    def _copy_until(self, number: int) -> None:
        with self._lock:
            while self._done < number:
                target, source = self._waiting.pop(0)
                target.copy_(source)
                self._done += 1


class Early:
    """A copy happens at once; `log` has the order of starts and of first waits."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log, self._copies = name, log, 0

    def after_device(self) -> None:
        self._log.append(f"{self._name} after device")

    def after(self, work: Work) -> None:
        self._log.append(f"{self._name} after collective")
        work.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        label = f"{self._name} {self._copies}"
        self._copies += 1
        self._log.append(label)
        target.copy_(source)
        return lambda: self._log.append(f"wait {label}")

    def before_device(self) -> None:
        self._log.append(f"device after {self._name}")
