# SPDX-License-Identifier: Apache-2.0
"""One bucket's memory: its weights and its gradient accumulator as flat tensors, of which parameters are views."""

from collections.abc import Iterator, Sequence

import torch

from megatron_core.data_parallel.buckets import Bucket
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter


class FlatBucket:
    """Takes over the storage of its parameters and gives each one a `main_grad` view."""

    def __init__(self, plan: Bucket, parameters: Sequence[SpecParameter], grad_dtype: torch.dtype) -> None:
        """`parameters`: all of the rank's, in order of declaration; the plan's slots pick from them."""
        self.kind = plan.kind
        self.parameters = [parameters[slot.parameter] for slot in plan.slots]
        self.slots = plan.slots
        first = self.parameters[0]
        self.weights = torch.empty(plan.size, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros(plan.size, dtype=grad_dtype, device=first.device)
        for slot, parameter in zip(plan.slots, self.parameters):
            view = self.weights[slot.start : slot.stop].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.main_grad = self.grads[slot.start : slot.stop].view(parameter.shape)

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies to this bucket."""
        return self.kind.decayed

    def views(self, flat: torch.Tensor) -> Iterator[tuple[ShardSpec, torch.Tensor]]:
        """Each parameter's part of a flat tensor that is laid out as `weights`, in the parameter's local shape."""
        for slot, parameter in zip(self.slots, self.parameters):
            yield parameter.spec, flat[slot.start : slot.stop].view(parameter.shape)

    @property
    def counted_ranges(self) -> list[tuple[int, int]]:
        """Ranges of the bucket whose elements this rank counts in sums over the model; neighbours are merged."""
        ranges: list[tuple[int, int]] = []
        for slot, parameter in zip(self.slots, self.parameters):
            if not parameter.spec.counted:
                continue
            if ranges and ranges[-1][1] == slot.start:
                ranges[-1] = (ranges[-1][0], slot.stop)
            else:
                ranges.append((slot.start, slot.stop))
        return ranges
