# SPDX-License-Identifier: Apache-2.0
"""Which rows of each bucket a dp rank serves in a compressed average: a pure plan, the same on every member.

A range holds whole rows, so that its server alone knows their scales. Scales are numbered for each member from 0 on, in
the order of buckets and rows: what travels to or from a member is then one contiguous vector.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.optim.onebit_compress import Rows

# So that a scale of 16 bits adds at most an eighth to the signs of its row (more where tp cuts the row).
_MIN_ROW = 128


@dataclass(frozen=True)
class Served:
    """Elements [start, stop) of a bucket, which one member serves."""

    start: int
    stop: int
    rows: tuple[Rows, ...]
    """Counted from `start`."""

    @property
    def span(self) -> slice:
        """Where they lie in the bucket."""
        return slice(self.start, self.stop)


def bucket_rows(bucket: FlatBucket) -> list[Rows]:
    """The rows of a bucket, parameter by parameter, their scales not yet numbered."""
    found = []
    for slot, parameter in zip(bucket.slots, bucket.parameters):
        spec = parameter.spec
        first = _row_dim(spec.shape)
        length = math.prod(parameter.shape[first:])
        found.append(Rows(slot.start, slot.stop, length, cut=spec.dim is not None and spec.dim >= first))
    return found


def _row_dim(shape: Sequence[int]) -> int:
    """The dim of a global tensor from which on a row runs: the last, or an earlier one where that is too short."""
    return next((dim for dim in reversed(range(len(shape))) if math.prod(shape[dim:]) >= _MIN_ROW), 0)


def share_out(buckets: Sequence[Sequence[Rows]], members: int) -> tuple[list[list[Served]], int]:
    """About equal ranges of each bucket's rows by member, and the largest number of scales that a member has."""
    numbered = [0] * members
    shares = []
    for rows in buckets:
        size = rows[-1].stop
        cuts = [_first_row(rows, size * member // members) for member in range(members + 1)]
        served = []
        for member, (start, stop) in enumerate(pairwise(cuts)):
            own = tuple(_within(rows, start, stop, numbered[member]))
            numbered[member] += sum(run.count for run in own)
            served.append(Served(start, stop, own))
        shares.append(served)
    return shares, max(numbered)


def _first_row(rows: Sequence[Rows], element: int) -> int:
    """Where the first row from `element` on begins, or the bucket's end."""
    run = next((run for run in rows if element < run.stop), rows[-1])
    return run.start + -(-(element - run.start) // run.length) * run.length


def _within(rows: Sequence[Rows], start: int, stop: int, scale: int) -> Iterator[Rows]:
    """What lies in [start, stop), counted from `start`, with scales from number `scale` on."""
    for run in rows:
        first, last = max(run.start, start), min(run.stop, stop)
        if first < last:
            yield Rows(first - start, last - start, run.length, run.cut, scale)
            scale += (last - first) // run.length
