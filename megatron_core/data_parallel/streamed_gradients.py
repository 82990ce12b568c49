# SPDX-License-Identifier: Apache-2.0
"""The gradients of one bucket, streamed to the host during backward (ZeRO-Offload, Ren et al., arXiv:2101.06840).

The bucket has no gradient memory of its own on the device. The first contribution of a microbatch opens it in a lane of
the pool; when all have come it is reduced and leaves for the accumulator, which holds what this rank owns in at least
fp32. The first microbatch of a step overwrites that, so that nobody has to pass over it with zeros.
"""

import torch

from megatron_core.data_parallel.gradient_lane import Lane
from megatron_core.data_parallel.gradient_pool import GradientPool
from megatron_core.kernels.precision import wide_dtype
from megatron_core.optim.host_memory import host_zeros
from megatron_core.parallel.collectives import Work


class StreamedGradients:
    """Of one bucket."""

    def __init__(self, pool: GradientPool, length: int, owned: tuple[int, int]) -> None:
        """length: elements of the bucket, of which this rank owns [start, stop). Raises as `host_zeros`."""
        self._pool, self._length, self._part = pool, length, slice(*owned)
        (self.owned,) = host_zeros([owned[1] - owned[0]], wide_dtype(pool.dtype))
        """What has arrived of the owned range, on the host; complete once the pool has finished."""
        self._spare: torch.Tensor | None = None
        self._lane: Lane | None = None
        self._add = False

    @property
    def memory(self) -> torch.Tensor:
        """Memory of the device for the whole bucket, to be added to; opened with zeros if it is not open."""
        if self._lane is None:
            self._lane = self._pool.take()
            self._lane.memory[: self._length].zero_()
        return self._lane.memory[: self._length]

    def begin_step(self) -> None:
        """What is sent next begins a new sum."""
        assert self._lane is None, "a bucket is open that was never complete"
        self._add = False

    def take(self) -> torch.Tensor:
        """`owned`, which is the caller's until the next call: the next step's accumulates elsewhere."""
        if self._spare is None:
            (self._spare,) = host_zeros([len(self.owned)], self.owned.dtype)
        self.owned, self._spare = self._spare, self.owned
        return self._spare

    def send(self, reduced: Work) -> None:
        """Let what is in `memory` go, once its reduction is done."""
        assert self._lane is not None, "nothing has come that could be sent"
        self._lane.send(self.memory[self._part], self.owned, reduced, add=self._add)
        self._pool.give_back(self._lane)
        self._lane, self._add = None, True
