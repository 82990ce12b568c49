# SPDX-License-Identifier: Apache-2.0
"""What one rank has called of torch.distributed: which collective it is in, the last one, and the seconds spent there.

Calls are counted by channel, which is a group or, for transfers, a directed pair of ranks: "dp", "pp 0>1". Members
count alike, so that a rank which waits in number 7 waits for those members whose count is below 7, whatever they do
now. That is all that the watchdog needs to say who waits for whom, and it stays true for collectives that run in the
background while their rank computes.

The log is written by the thread that communicates and read by the watchdog's without a lock: each field is replaced
whole, so a reader may be one call late but never sees half a call.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from megatron_core.parallel.device_queue import DeviceQueue, Mark


class Call(NamedTuple):
    """One collective, or one transfer between two ranks, as this rank takes part in it."""

    op: str
    """all_reduce, all_gather, ..., send, receive."""
    group: str
    """Name of the group it is in."""
    channel: str
    """What `number` counts: the group, or "pp 0>1" for what rank 0 sends to rank 1."""
    number: int
    """From 1."""
    members: tuple[int, ...]
    """Ranks that must take part."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Where a rank stands, in seconds of its own clock up to now."""

    inside: Call | None
    """The call that it is blocked in, the host or else the device; None while it computes."""
    inside_s: float
    last: Call | None
    """The call that it left last."""
    last_s: float
    """How long ago that was."""
    counts: dict[str, int]
    """Calls begun, by channel; of those queued on a device, not the ones behind `inside`."""


class CollectiveLog:
    """The log of one rank, shared by all its groups. Groups of one record nothing."""

    def __init__(self, *, mark: Callable[[], Mark] | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """mark: where collectives are queued on a device, places a mark behind the last one; None where they block."""
        self._now = now
        self._device = None if mark is None else DeviceQueue[tuple[Call, bool]](mark, now=now)
        self._counts: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._inside: tuple[Call, float, bool] | None = None  # since when; whether it was begun before
        self._last: tuple[Call, float] | None = None

    def begin(self, op: str, group: str, ranks: tuple[int, ...], channel: str | None = None) -> Call:
        """Count a call on its channel (the group unless named) and enter it; of a batch, the last one stays entered."""
        channel = channel or group
        number = self._counts[channel] = self._counts.get(channel, 0) + 1
        call = Call(op, group, channel, number, ranks)
        self._inside = call, self._now(), False
        return call

    def enter(self, call: Call) -> None:
        """Begin to wait for a call that was begun and left before."""
        self._inside = call, self._now(), True

    def leave(self) -> None:
        """Come out of the call entered last. After an error nobody does: the log goes on saying where it happened."""
        assert self._inside is not None, "a collective was left that had not been entered"
        call, since, begun_before = self._inside
        now = self._now()
        self._seconds[call.group] = self._seconds.get(call.group, 0.0) + now - since
        self._last = call, now
        self._inside = None
        if self._device is not None:
            self._device.put((call, begun_before))

    def blocked_s(self) -> dict[str, float]:
        """Seconds that this rank was blocked in calls, by group, since the start: take differences.

        With gloo this is communication that no computation hides. On CUDA a call returns once it is queued: the seconds
        are the host's, not the device's, and say nothing about communication.
        """
        return dict(self._seconds)

    def snapshot(self) -> Snapshot:
        """Where this rank stands now; may be called from one other thread, which does so regularly."""
        queued, queued_s = self._device.unfinished() if self._device is not None else ([], 0.0)
        inside, last, now = self._inside, self._last, self._now()
        counts = dict(self._counts)  # after what they must cover
        call, seconds = None, 0.0
        if inside is not None:
            call, seconds = inside[0], now - inside[1]
        elif queued:
            call, seconds = queued[0][0], queued_s
        for behind, begun_before in queued[1:]:
            if behind != call and not begun_before:
                counts[behind.channel] = min(counts[behind.channel], behind.number - 1)
        return Snapshot(
            inside=call,
            inside_s=seconds,
            last=last[0] if last else None,
            last_s=now - last[1] if last else 0.0,
            counts=counts,
        )
