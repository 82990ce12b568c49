# SPDX-License-Identifier: Apache-2.0
"""Which parameters share a flat bucket, in which order: a pure plan, the same on every rank of a stage.

A bucket holds parameters of one class (decay, partial group, tied), so that whatever is done to a gradient is one
operation on one contiguous tensor. Buckets fill in backward order and are reduced in the order of the plan: those that
backward completes first come first, tied ones last, since both ends of the pipeline must reach them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megatron_core.tensor_parallel.shard_spec import ShardSpec


@dataclass(frozen=True)
class BucketClass:
    """What all parameters of a bucket have in common."""

    decayed: bool
    partial: str | None
    tied: bool
    repeated: bool = False
    """Whether a microbatch contributes more than once: a tied table on a single stage."""

    @staticmethod
    def of(spec: ShardSpec) -> "BucketClass":
        """The class of a parameter."""
        return BucketClass(spec.decayed, spec.partial, spec.tied, spec.gradients > 1)

    @property
    def streamable(self) -> bool:
        """Whether backward completes a microbatch's gradients bucket by bucket, so that they can leave at once.

        A repeated table's come first and last, biases and norms are small and fill one bucket from end to end, and what
        must be added over another group is better added once a step.
        """
        return self.decayed and self.partial is None and not self.tied and not self.repeated


@dataclass(frozen=True)
class Slot:
    """Elements [start, stop) of a bucket belong to parameter number `parameter` in order of declaration."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """A contiguous run of parameters."""

    kind: BucketClass
    slots: tuple[Slot, ...]

    @property
    def size(self) -> int:
        """Elements in the bucket."""
        return self.slots[-1].stop

    def padded(self, owners: int) -> int:
        """Elements once zeros at the end have made it even for so many owners."""
        return -(-self.size // owners) * owners

    @property
    def completed_by(self) -> int:
        """The parameter whose gradient backward makes last: the one declared first."""
        return min(slot.parameter for slot in self.slots)


def plan_buckets(specs: Sequence[ShardSpec], sizes: Sequence[int], bucket_size: int) -> tuple[Bucket, ...]:
    """Share parameters out over buckets of about `bucket_size` elements (a larger parameter gets its own).

    `specs` and `sizes` (local elements, padding included) are in order of declaration, which backward reverses.
    """
    open_slots: dict[BucketClass, list[Slot]] = {}
    buckets: list[Bucket] = []
    for number in reversed(range(len(specs))):
        kind = BucketClass.of(specs[number])
        slots = open_slots.setdefault(kind, [])
        start = slots[-1].stop if slots else 0
        if slots and start + sizes[number] > bucket_size:
            buckets.append(Bucket(kind, tuple(slots)))
            slots = open_slots[kind] = []
            start = 0
        slots.append(Slot(number, start, start + sizes[number]))
    buckets += [Bucket(kind, tuple(slots)) for kind, slots in open_slots.items()]
    return tuple(sorted(buckets, key=lambda bucket: (bucket.kind.tied, -bucket.completed_by)))
