# SPDX-License-Identifier: Apache-2.0
"""The plan of buckets: every parameter once, one class a bucket, backward order, tied ones last."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data_parallel.buckets import BucketClass, plan_buckets
from megatron_core.tensor_parallel.shard_spec import ShardSpec


def _spec(decayed: bool = True, partial: str | None = None, tied: bool = False, gradients: int = 1) -> ShardSpec:
    return ShardSpec(name="w", shape=(1,), decayed=decayed, partial=partial, tied=tied, gradients=gradients)


SPECS = st.builds(_spec, st.booleans(), st.sampled_from([None, "tp", "kv"]), st.booleans(), st.integers(1, 2))
PARAMETERS = st.lists(st.tuples(SPECS, st.integers(1, 50)), min_size=1, max_size=30)


@settings(deadline=None)
@given(parameters=PARAMETERS, bucket_size=st.integers(1, 120))
def test_every_parameter_has_one_slot_in_a_bucket_of_its_class(parameters: list, bucket_size: int) -> None:
    specs, sizes = [spec for spec, _ in parameters], [size for _, size in parameters]
    buckets = plan_buckets(specs, sizes, bucket_size)
    assert sorted(slot.parameter for bucket in buckets for slot in bucket.slots) == list(range(len(specs)))
    for bucket in buckets:
        assert bucket.slots[0].start == 0 and bucket.size == sum(sizes[slot.parameter] for slot in bucket.slots)
        for slot, following in zip(bucket.slots, bucket.slots[1:]):
            assert slot.stop == following.start and slot.parameter > following.parameter
        assert {BucketClass.of(specs[slot.parameter]) for slot in bucket.slots} == {bucket.kind}
        assert bucket.size <= bucket_size or len(bucket.slots) == 1
        assert bucket.completed_by == bucket.slots[-1].parameter


@settings(deadline=None)
@given(parameters=PARAMETERS, bucket_size=st.integers(1, 120))
def test_order_follows_backward_with_tied_buckets_last(parameters: list, bucket_size: int) -> None:
    buckets = plan_buckets([spec for spec, _ in parameters], [size for _, size in parameters], bucket_size)
    tied = [bucket.kind.tied for bucket in buckets]
    assert tied == sorted(tied)
    for group in (False, True):
        completed = [bucket.completed_by for bucket in buckets if bucket.kind.tied is group]
        assert completed == sorted(completed, reverse=True)


def test_a_bucket_closes_when_the_next_parameter_would_overfill_it() -> None:
    buckets = plan_buckets([_spec()] * 5, [4, 4, 4, 100, 4], bucket_size=8)
    assert [[slot.parameter for slot in bucket.slots] for bucket in buckets] == [[4], [3], [2, 1], [0]]


@pytest.mark.parametrize(
    ("spec", "streamable"),
    [
        (_spec(), True),
        (_spec(decayed=False), False),
        (_spec(partial="kv"), False),
        (_spec(tied=True), False),
        (_spec(gradients=2), False),
    ],
)
def test_only_what_backward_completes_bucket_by_bucket_is_streamable(spec: ShardSpec, streamable: bool) -> None:
    assert BucketClass.of(spec).streamable == streamable


@pytest.mark.parametrize(("owners", "length"), [(1, 22), (2, 22), (3, 24), (5, 25), (22, 22), (23, 23)])
def test_padding_makes_the_owners_shares_even(owners: int, length: int) -> None:
    (bucket,) = plan_buckets([_spec()], [22], bucket_size=8)
    assert bucket.padded(owners) == length
