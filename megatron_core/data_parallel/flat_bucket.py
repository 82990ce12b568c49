# SPDX-License-Identifier: Apache-2.0
"""One bucket's memory: its weights and its gradient accumulator as flat tensors, of which parameters are views.

The gradients either stay on the device until the step ends or are streamed to the host microbatch by microbatch.

With ZeRO-1 (Rajbhandari et al., arXiv:1910.02054) the dp ranks share the update out: each owns an equal range of every
bucket, whose gradient it gets reduced, whose optimizer state it alone keeps, and whose new weights it gives to the
others. The range is cut without regard to parameters. Without ZeRO every rank owns all of it.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from megatron_core.data_parallel.buckets import Bucket, Slot
from megatron_core.data_parallel.gradient_pool import GradientPool
from megatron_core.data_parallel.streamed_gradients import StreamedGradients
from megatron_core.parallel.host_storage import host_like
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter

Range = tuple[int, int]
"""[start, stop) of a bucket's elements."""


class FlatBucket:
    """Takes over the storage of its parameters and gives each one a `main_grad` view."""

    def __init__(
        self,
        plan: Bucket,
        parameters: Sequence[SpecParameter],
        grad_dtype: torch.dtype,
        owner: Range = (0, 1),
        pool: GradientPool | None = None,
    ) -> None:
        """`parameters`: all of the rank's, in order of declaration; the plan's slots pick from them.

        owner: (coordinate, number) of those who share the bucket out; the flat tensors end in zeros that make it even.
        pool: what gradients are streamed through, in its dtype; None where they stay.
        """
        coordinate, owners = owner
        length = plan.padded(owners)
        part = length // owners
        self.kind = plan.kind
        self.parameters = [parameters[slot.parameter] for slot in plan.slots]
        self.slots = plan.slots
        self.contributions = sum(parameter.spec.gradients for parameter in self.parameters)
        """Gradient contributions of one microbatch."""
        self.owned: Range = (coordinate * part, (coordinate + 1) * part)
        """What this rank updates, the zeros at the end included."""
        first = self.parameters[0]
        self.weights = torch.zeros(length, dtype=first.dtype, device=first.device)
        self.stream = None if pool is None else StreamedGradients(pool, length, self.owned)
        """Not None where gradients are streamed."""
        self._taken: torch.Tensor | None = None
        self._grads = torch.zeros(length if pool is None else 0, dtype=grad_dtype, device=first.device)
        for slot, parameter in zip(plan.slots, self.parameters):
            view = self.weights[slot.start : slot.stop].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.accumulator = partial(self._main_grad, slot, parameter.shape)
        self.counted_ranges = self._counted_ranges()
        """Of the owned range, what this rank counts in sums over the model; neighbours are merged."""

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies to this bucket."""
        return self.kind.decayed

    @property
    def sharded(self) -> bool:
        """Whether others own parts of it."""
        return self.owned != (0, len(self.weights))

    @property
    def owned_weights(self) -> torch.Tensor:
        """The weights that this rank updates, as a view."""
        return self.weights[slice(*self.owned)]

    @property
    def grads(self) -> torch.Tensor:
        """The device's memory for gradients, laid out as `weights`; streamed ones: while a microbatch adds to them."""
        return self._grads if self.stream is None else self.stream.memory

    @property
    def owned_grads(self) -> torch.Tensor:
        """The gradients of `owned_weights`, once they are reduced, as a view; on the host if they are streamed."""
        return self._grads[slice(*self.owned)] if self.stream is None else self.stream.owned

    @property
    def grads_on_host(self) -> bool:
        """Whether `owned_grads` lie there."""
        return self.stream is not None

    @property
    def counted_grads(self) -> list[torch.Tensor]:
        """Views of those that this rank counts in sums over the model."""
        begin = self.owned[0]
        return [self.owned_grads[start - begin : stop - begin] for start, stop in self.counted_ranges]

    def take_grads(self) -> torch.Tensor:
        """`owned_grads` in memory of the host, which stay as they are until the next call."""
        if self.stream is not None:
            return self.stream.take()
        if self._taken is None:
            self._taken = host_like(self.owned_grads)
        return self._taken.copy_(self.owned_grads)

    def views(self, flat: torch.Tensor) -> Iterator[tuple[ShardSpec, torch.Tensor]]:
        """Each parameter's part of a flat tensor that is laid out as `weights`, in the parameter's local shape."""
        for slot, parameter in zip(self.slots, self.parameters):
            yield parameter.spec, flat[slot.start : slot.stop].view(parameter.shape)

    def owned_views(self, flat: torch.Tensor) -> Iterator[tuple[ShardSpec, int, torch.Tensor]]:
        """`range_views` of a flat tensor laid out as `owned_weights`."""
        return self.range_views(flat, self.owned[0])

    def range_views(self, flat: torch.Tensor, begin: int) -> Iterator[tuple[ShardSpec, int, torch.Tensor]]:
        """Of what lies in the bucket from element `begin` on: spec, first element within the parameter, and the values.

        Values are flat; parameters of which nothing lies there are left out.
        """
        for slot, parameter in zip(self.slots, self.parameters):
            start, stop = max(slot.start, begin), min(slot.stop, begin + len(flat))
            if start < stop:
                yield parameter.spec, start - slot.start, flat[start - begin : stop - begin]

    def _main_grad(self, slot: Slot, shape: torch.Size) -> torch.Tensor:
        return self.grads[slot.start : slot.stop].view(shape)

    def _counted_ranges(self) -> list[Range]:
        ranges: list[Range] = []
        begin, end = self.owned
        for slot, parameter in zip(self.slots, self.parameters):
            start, stop = max(slot.start, begin), min(slot.stop, end)
            if not parameter.spec.counted or start >= stop:
                continue
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], stop)
            else:
                ranges.append((start, stop))
        return ranges
