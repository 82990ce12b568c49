# SPDX-License-Identifier: Apache-2.0
"""A copy of what this rank saves in host memory, so that training goes on while the disk is written to.

The copy is all that training waits for. Its memory is kept for the next save: getting it from the system anew, page by
page, would take longer than the copy. On CUDA it is pinned, so that the copy runs at the speed of the bus.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch

from megatron_core.checkpoint.writer import Shard

_ALIGNMENT = 64
_MOST_THREADS = 8  # more do not copy faster
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class HostCopy:
    """Holds one copy at a time."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the values to be copied lie."""
        self._device = device
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def reserve(self, shards: Sequence[Shard]) -> None:
        """Get the memory for these shards, every page of it. Raises RuntimeError where there is not enough."""
        nbytes = _offsets(shards)[-1]
        if len(self._buffer) < nbytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new one comes
            self._buffer = torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._stream is not None).zero_()

    def take(self, shards: Sequence[Shard]) -> list[Shard]:
        """The shards with their present values, which hold until the next call. Raises as `reserve`."""
        self.reserve(shards)
        copies = []
        for shard, start in zip(shards, _offsets(shards)):
            flat = self._buffer[start : start + shard.values.nbytes].view(shard.values.dtype)
            copies.append(replace(shard, values=flat.view(shard.values.shape)))
        pairs = [(copy.values, shard.values) for copy, shard in zip(copies, shards)]
        if self._stream is None:
            _copy_within_host(pairs)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)
            self._stream.synchronize()
        return copies


def _copy_within_host(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy each second tensor into the first.

    torch's own copy cuts each tensor evenly over its threads, and all wait for the slowest one: several times slower
    where something else has the cores. Here a thread that is done takes the next tensor.
    """
    waiting = iter(pairs)

    def work() -> None:
        for target, source in waiting:
            np.copyto(_bits(target), _bits(source))

    workers = min(torch.get_num_threads(), _MOST_THREADS)
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()


def _bits(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as integers: numpy has no bfloat16."""
    return tensor.view(_INTEGERS[tensor.element_size()]).numpy()


def _offsets(shards: Sequence[Shard]) -> list[int]:
    """First byte of each shard in the buffer, and one past the last."""
    offsets = [0]
    for shard in shards:
        offsets.append(offsets[-1] + -(-shard.values.nbytes // _ALIGNMENT) * _ALIGNMENT)
    return offsets
