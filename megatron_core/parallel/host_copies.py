# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device behind the back of both: what offloading is made of."""

from collections.abc import Callable
from typing import Protocol

import torch

from megatron_core.parallel.collectives import Work

Wait = Callable[[], None]
"""Returns when what it belongs to is done; at once when called again."""


class Copies(Protocol):
    """Copies in the order in which they are started."""

    def after_device(self) -> None:
        """What is copied from now on waits for all that the device has been given so far."""

    def after(self, work: Work) -> None:
        """What is copied from now on waits for a collective."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        """Start a copy."""

    def before_device(self) -> None:
        """What the device is given from now on waits for all copies so far."""


class CudaCopies:
    """Copies on a stream of their own; host memory must be pinned."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def after_device(self) -> None:
        """See `Copies`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def after(self, work: Work) -> None:
        """See `Copies`."""
        with torch.cuda.stream(self._stream):
            work.wait()  # of NCCL: it is the current stream that waits

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        """See `Copies`."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            done = torch.cuda.Event(blocking=True)  # who waits sleeps, and leaves the core to the host's update
            done.record()
        return done.synchronize

    def before_device(self) -> None:
        """See `Copies`."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)


class DirectCopies:
    """Where the device is the host: every copy is done when it is asked for."""

    def after_device(self) -> None:
        """See `Copies`."""

    def after(self, work: Work) -> None:
        """See `Copies`."""
        work.wait()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Wait:
        """See `Copies`."""
        target.copy_(source)
        return _at_once

    def before_device(self) -> None:
        """See `Copies`."""


def copies_of(device: torch.device) -> Copies:
    """A new line of copies to or from a device."""
    return CudaCopies(device) if device.type == "cuda" else DirectCopies()


def _at_once() -> None:
    """The wait for nothing."""
