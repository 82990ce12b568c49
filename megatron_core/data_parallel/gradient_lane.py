# SPDX-License-Identifier: Apache-2.0
"""The way of a bucket's gradients out of the device's memory into an accumulator of the host.

A lane is memory of the device for one bucket at a time, and whatever empties it behind the back of backward.
"""

from concurrent.futures import Executor, Future
from typing import Protocol

import torch

from megatron_core.parallel.collectives import DONE, Work
from megatron_core.parallel.host_copies import Copies, Wait


class Lane(Protocol):
    """Used by one bucket after the other: written to, sent, vacated."""

    memory: torch.Tensor
    """Flat, on the device."""

    def send(self, source: torch.Tensor, target: torch.Tensor, reduced: Work, *, add: bool) -> None:
        """Start to bring `source` [n], a part of `memory`, into `target` [n] on the host, once `reduced` is done.

        add: to what is there already, or in its place.
        """

    def vacate(self) -> None:
        """Afterwards the device may be given work that writes to `memory` again."""

    def finish(self) -> None:
        """Return when all that was sent is where it belongs. Raises what went wrong on the way."""


class DirectLane:
    """Where the device is the host. What was sent waits for its reduction until somebody wants the memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self._source = self._target = memory[:0]
        self._reduced, self._add = DONE, False

    def send(self, source: torch.Tensor, target: torch.Tensor, reduced: Work, *, add: bool) -> None:
        """See `Lane`."""
        self._source, self._target, self._reduced, self._add = source, target, reduced, add

    def vacate(self) -> None:
        """See `Lane`."""
        self._reduced.wait()
        _put(self._target, self._source, add=self._add)
        self._source = self._target = self.memory[:0]
        self._reduced = DONE

    def finish(self) -> None:
        """See `Lane`."""
        self.vacate()


class CopyingLane:
    """To a host apart: over `staging` [at least n], pinned, from which a thread of the host fills the accumulators.

    Backward waits for the host only where that has not yet dealt with what this lane brought before.
    """

    def __init__(self, memory: torch.Tensor, staging: torch.Tensor, copies: Copies, host: Executor) -> None:
        """The copies are the lane's own, so that nobody waits for those of another."""
        self.memory = memory
        self._staging, self._copies, self._host = staging, copies, host
        self._putting: Future[None] | None = None

    def send(self, source: torch.Tensor, target: torch.Tensor, reduced: Work, *, add: bool) -> None:
        """See `Lane`."""
        self.finish()
        staging = self._staging[: len(source)]
        self._copies.after_device()
        self._copies.after(reduced)
        arrived = self._copies.copy(staging, source)
        self._putting = self._host.submit(_put_when, arrived, target, staging, add=add)

    def vacate(self) -> None:
        """See `Lane`."""
        self._copies.before_device()

    def finish(self) -> None:
        """See `Lane`."""
        if self._putting is not None:
            self._putting.result()
            self._putting = None


def _put_when(arrived: Wait, target: torch.Tensor, source: torch.Tensor, *, add: bool) -> None:
    arrived()
    _put(target, source, add=add)


def _put(target: torch.Tensor, source: torch.Tensor, *, add: bool) -> None:
    if add:
        target.add_(source)
    else:
        target.copy_(source)
