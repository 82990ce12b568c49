# SPDX-License-Identifier: Apache-2.0
"""Memory of the device that buckets share for the gradients of a microbatch, where they accumulate on the host.

There are two lanes: one is filled while the other is emptied. Where more buckets are open at once, as a schedule that
puts weight gradients off may have it, they get more lanes: nothing depends on the order in which contributions come.
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch

from megatron_core.data_parallel.gradient_lane import CopyingLane, DirectLane, Lane
from megatron_core.parallel.host_copies import CudaCopies

_LANES = 2


class GradientPool:
    """The lanes of one rank."""

    def __init__(self, size: int, owned: int, dtype: torch.dtype, device: torch.device) -> None:
        """size: elements of the largest bucket; owned: the most of one that the host gets."""
        self._size, self._owned, self.dtype, self._device = size, owned, dtype, device
        self._host = ThreadPoolExecutor(1, thread_name_prefix="host-gradients")
        self._lanes: list[Lane] = []
        self._ready: deque[Lane] = deque(self._new_lane() for _ in range(_LANES))
        """Not in use, the one that was sent first at the front."""

    @property
    def memory(self) -> list[torch.Tensor]:
        """What it takes of the device, one flat tensor a lane."""
        return [lane.memory for lane in self._lanes]

    def take(self) -> Lane:
        """A lane to be written to."""
        if not self._ready:
            return self._new_lane()
        lane = self._ready.popleft()
        lane.vacate()
        return lane

    def give_back(self, lane: Lane) -> None:
        """Of a lane that has been sent."""
        self._ready.append(lane)

    def finish(self) -> None:
        """Return when all that was sent has arrived, none being open any more. Raises what went wrong on the way."""
        for lane in self._ready:  # as they were sent: the first contribution to a sum overwrites what was there
            lane.finish()

    def _new_lane(self) -> Lane:
        memory = torch.empty(self._size, dtype=self.dtype, device=self._device)
        lane: Lane
        if self._device.type == "cpu":
            lane = DirectLane(memory)
        else:
            staging = torch.empty(self._owned, dtype=self.dtype, pin_memory=True)
            lane = CopyingLane(memory, staging, CudaCopies(self._device), self._host)
        self._lanes.append(lane)
        return lane
