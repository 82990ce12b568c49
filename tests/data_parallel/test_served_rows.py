# SPDX-License-Identifier: Apache-2.0
"""Who serves which rows: whole rows, each once, in about equal shares."""

from itertools import pairwise

import pytest
import torch

from megatron_core.data_parallel.buckets import Bucket, BucketClass, Slot
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.data_parallel.served_rows import bucket_rows, share_out
from megatron_core.optim.onebit_compress import Rows
from megatron_core.tensor_parallel.shard_spec import ShardSpec, make_parameter

BUCKETS = [
    [Rows(0, 60, 20), Rows(60, 100, 5, cut=True), Rows(100, 107, 7)],
    [Rows(0, 3, 3)],  # fewer rows than members
    [Rows(0, 4096, 1)],
]


@pytest.mark.parametrize("members", [1, 2, 3, 4, 7])
def test_every_row_is_served_once_and_its_scale_has_a_number_of_its_own(members: int) -> None:
    shares, num_scales = share_out(BUCKETS, members)
    numbers: list[list[int]] = [[] for _ in range(members)]
    for rows, parts in zip(BUCKETS, shares):
        assert len(parts) == members
        assert parts[0].start == 0 and parts[-1].stop == rows[-1].stop
        assert all(left.stop == right.start for left, right in pairwise(parts))
        starts = {start for run in rows for start in range(run.start, run.stop, run.length)}
        longest = max(run.length for run in rows)
        for member, part in enumerate(parts):
            assert part.start in starts or part.start == part.stop
            assert part.stop - part.start <= rows[-1].stop / members + longest
            assert sum(run.stop - run.start for run in part.rows) == part.stop - part.start
            for run in part.rows:
                origin = next(r for r in rows if r.start <= part.start + run.start < r.stop)
                assert (run.length, run.cut) == (origin.length, origin.cut)
                assert (run.stop - run.start) % run.length == 0
                numbers[member] += range(run.scales.start, run.scales.stop)
    assert all(found == list(range(len(found))) for found in numbers)
    assert num_scales == max(map(len, numbers))
    assert sum(map(len, numbers)) == sum(run.count for rows in BUCKETS for run in rows)


def test_rows_have_at_least_128_elements_whatever_the_layout() -> None:
    specs = [
        ShardSpec(name="q", shape=(4, 3, 128), dim=0, start=0, stop=2),
        ShardSpec(name="output", shape=(128, 4, 32), dim=1, start=2, stop=4),  # one head's are too few: all heads
        ShardSpec(name="down", shape=(8, 320), dim=1, start=0, stop=160),
        ShardSpec(name="norm", shape=(128,)),
        ShardSpec(name="bias", shape=(2, 32), dim=1, start=0, stop=16),
    ]
    parameters = [make_parameter(torch.zeros(spec.local_shape), spec) for spec in specs]
    slots, start = [], 0
    for number, parameter in enumerate(parameters):
        slots.append(Slot(number, start, start + parameter.numel()))
        start += parameter.numel()
    bucket = FlatBucket(Bucket(BucketClass(True, None, False), tuple(slots)), parameters, torch.float32)
    assert [(run.length, run.count, run.cut) for run in bucket_rows(bucket)] == [
        (128, 6, False),
        (64, 128, True),
        (160, 8, True),
        (128, 1, False),
        (32, 1, True),
    ]
