# SPDX-License-Identifier: Apache-2.0
"""Collectives that the host has queued and the device has not finished.

On CUDA a collective returns at once; a rank whose peer never comes blocks later, wherever the host next needs a result.
A mark (an event of the stream) behind each collective tells which one the device is stuck in.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import torch

T = TypeVar("T")


class Mark(Protocol):
    """A place in the work of a device."""

    def query(self) -> bool:
        """Whether the device has come past it; from any thread."""


class DeviceQueue(Generic[T]):
    """Filled by the thread that communicates, looked at by one other thread."""

    def __init__(self, mark: Callable[[], Mark], *, now: Callable[[], float] = time.monotonic) -> None:
        """mark: places a mark behind all that was queued so far."""
        self._mark, self._now = mark, now
        self._items: deque[tuple[T, Mark]] = deque()
        self._first: T | None = None
        self._since = now()

    def put(self, item: T) -> None:
        """Remember what was queued last, and forget what is finished."""
        while self._items and self._items[0][1].query():
            self._items.popleft()
        self._items.append((item, self._mark()))

    def unfinished(self) -> tuple[list[T], float]:
        """What the device has not finished, in order, and for how many seconds it is at the first of them.

        The host runs ahead of the device, so the time since an item was queued would say nothing: seconds count from
        the look that first found it in front.
        """
        waiting = [item for item, mark in list(self._items) if not mark.query()]
        first, now = waiting[0] if waiting else None, self._now()
        if first != self._first:
            self._first, self._since = first, now
        return waiting, now - self._since


def cuda_mark() -> Mark:
    """A mark in the current stream."""
    event = torch.cuda.Event()
    event.record()
    return event
