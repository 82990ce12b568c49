# SPDX-License-Identifier: Apache-2.0
"""Buckets on their way from the device to the host and back, two at a time.

While the host updates one bucket, the gradients of the next arrive and the weights of the last return; so the bus and
the host work at once, and all that is pinned is a pool of two buckets. DeepSpeed moves everything down, updates it and
moves everything up, in turn. Gradients that were streamed to the host during backward are there already.
"""

from collections.abc import Callable, Iterator, Sequence

import torch

from megatron_core.optim.mixed_precision import Flat
from megatron_core.parallel.host_copies import Copies, Wait


class _Slot:
    """Host memory for one bucket under way."""

    def __init__(self, buckets: Sequence[Flat], *, pinned: bool) -> None:
        travelling = [bucket.owned_grads for bucket in buckets if not bucket.grads_on_host]
        self.grads = _room_for(travelling, pinned=pinned)
        self.weights = _room_for([bucket.owned_weights for bucket in buckets], pinned=pinned)
        self.arrived: Wait = _at_once
        self.returned: Wait = _at_once


class HostTransfers:
    """The way of one rank's buckets, which are of one dtype."""

    def __init__(
        self,
        buckets: Sequence[Flat],
        down: Copies,
        up: Copies,
        *,
        with_weights: bool,
        pinned: bool,
        on_return: Callable[[int], None],
    ) -> None:
        """`down` brings gradients to the host, `up` brings weights back; `pinned`: whether host memory must be.

        with_weights: whether they come down too, as the host has no masters of them. on_return: told each bucket's
        number when the device will find its weights.
        """
        self._with_weights = with_weights
        self._buckets, self._down, self._up, self._on_return = buckets, down, up, on_return
        self._slots = [_Slot(buckets, pinned=pinned) for _ in range(min(2, len(buckets)))]

    def each(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """For each bucket, in order, its gradients and its weights on the host, both flat; what the caller makes of the
        weights before it asks for the next bucket goes back to the device.

        Weights that do not come down, as the host has their masters, are memory to be written to.
        """
        self._down.after_device()
        self._up.after_device()
        if self._buckets:
            self._fetch(0)
        for number, bucket in enumerate(self._buckets):
            if number + 1 < len(self._buckets):
                self._fetch(number + 1)
            slot, length = self._slots[number % 2], len(bucket.owned_weights)
            slot.arrived()
            slot.returned()
            weights = slot.weights[:length]
            yield bucket.owned_grads if bucket.grads_on_host else slot.grads[:length], weights
            self._give_back(number)

    def give(self, values: Sequence[torch.Tensor]) -> None:
        """Bring `values` [n] of the host, one a bucket, to the device's weights in their type."""
        self._up.after_device()
        for number, value in enumerate(values):
            slot = self._slots[number % 2]
            slot.returned()
            slot.weights[: len(value)].copy_(value)
            self._give_back(number)

    def _give_back(self, number: int) -> None:
        weights, slot = self._buckets[number].owned_weights, self._slots[number % 2]
        slot.returned = self._up.copy(weights, slot.weights[: len(weights)])
        self._up.before_device()
        self._on_return(number)

    def _fetch(self, number: int) -> None:
        bucket, slot = self._buckets[number], self._slots[number % 2]
        length = len(bucket.owned_weights)
        if self._with_weights:
            slot.returned()  # of the bucket before the last, whose weights lie where these shall
            slot.arrived = self._down.copy(slot.weights[:length], bucket.owned_weights)
        if not bucket.grads_on_host:
            slot.arrived = self._down.copy(slot.grads[:length], bucket.owned_grads)


def _room_for(flats: Sequence[torch.Tensor], *, pinned: bool) -> torch.Tensor:
    """Memory of the host for any one of `flats`, which are of one dtype."""
    dtype = flats[0].dtype if flats else torch.float32
    return torch.empty(max(map(len, flats), default=0), dtype=dtype, pin_memory=pinned)


def _at_once() -> None:
    """The wait for nothing."""
