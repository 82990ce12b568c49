# SPDX-License-Identifier: Apache-2.0
"""The update a step late, while the device computes (the delayed parameter update of ZeRO-Offload, arXiv:2101.06840).

    x_{t+1} = x_t - Adam(g_{t-1})

A thread of the host updates masters and moments by the gradients of one step during the forward and backward of the
next, and the device is given what came of it when that step ends. A step that is skipped gives no gradients to anybody.
Before `start` updates nothing is late: Adam's first updates are large.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

from megatron_core.optim.host_offload import HostOffloadAdamW
from megatron_core.optim.mixed_precision import BucketState, Flat


class GivesGradients(Flat, Protocol):
    """What the delayed update needs of a bucket."""

    def take_grads(self) -> torch.Tensor:
        """The gradients of `owned_weights` in memory of the host that nobody writes to before the next call."""


class DelayedAdamW:
    """The optimizer of one rank."""

    def __init__(self, buckets: Sequence[GivesGradients], adam: HostOffloadAdamW, *, start: int) -> None:
        """`adam`: over the same buckets, with masters. `start`: updates before the first one that is late."""
        self._buckets, self._adam, self._start = buckets, adam, start
        self._host = ThreadPoolExecutor(1, thread_name_prefix="delayed-update")
        self._running: Future[None] | None = None

    @property
    def states(self) -> list[BucketState]:
        """One a bucket, in the order of the buckets, with all updates that were asked for.

        While updates are late the weights have all but the last one. Raises what went wrong in it.
        """
        self._join()
        return self._adam.states

    def step(self, *, applied_steps: int, lr: float, weight_decay: float, grad_factor: float) -> None:
        """Give the device the last update, and begin with this one. All numbers are those of these gradients."""
        if applied_steps < self._start:
            self._join()
            self._adam.step(applied_steps=applied_steps, lr=lr, weight_decay=weight_decay, grad_factor=grad_factor)
            return
        self.pass_over()
        self._running = self._host.submit(
            self._adam.update_masters,
            [bucket.take_grads() for bucket in self._buckets],
            applied_steps=applied_steps,
            lr=lr,
            weight_decay=weight_decay,
            grad_factor=grad_factor,
        )

    def pass_over(self) -> None:
        """Give the device the last update: a step was taken, and there is no update for it."""
        self._join()
        self._adam.return_weights()

    def start_anew(self) -> None:
        """Take the present weights as the new masters and forget the rest: after weights alone were loaded."""
        self._join()
        self._adam.start_anew()

    def close(self) -> None:
        """End the threads."""
        self._join()
        self._host.shutdown()
        self._adam.close()

    def _join(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            running.result()
