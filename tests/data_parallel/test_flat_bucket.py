# SPDX-License-Identifier: Apache-2.0
"""Parameters and accumulators are views of the bucket's flat memory."""

from dataclasses import replace

import pytest
import torch

from megatron_core.data_parallel.buckets import plan_buckets
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.data_parallel.gradient_pool import GradientPool
from megatron_core.parallel.collectives import DONE
from megatron_core.parallel.host_storage import on_host
from megatron_core.tensor_parallel.shard_spec import ShardSpec, SpecParameter, make_parameter
from tests.small_model import randn

SHAPES = [(2, 3), (4,), (3, 2, 2)]


def _parameters(counted: list[bool]) -> list[SpecParameter]:
    return [
        make_parameter(randn(*shape, seed=i), ShardSpec(name=f"w{i}", shape=shape, counted=count))
        for i, (shape, count) in enumerate(zip(SHAPES, counted))
    ]


def _bucket(parameters: list[SpecParameter], dtype: torch.dtype = torch.float32) -> FlatBucket:
    (plan,) = plan_buckets([p.spec for p in parameters], [p.numel() for p in parameters], 1000)
    return FlatBucket(plan, parameters, dtype)


def test_weights_keep_their_values_and_become_views() -> None:
    parameters = _parameters([True] * 3)
    before = [p.detach().clone() for p in parameters]
    bucket = _bucket(parameters)
    assert all(torch.equal(p, old) for p, old in zip(parameters, before))
    bucket.weights.fill_(7.0)
    assert all(p.eq(7).all() for p in parameters)
    assert bucket.weights.numel() == 6 + 4 + 12 and bucket.weights.dtype == torch.float64


def test_accumulators_are_views_in_the_gradient_dtype() -> None:
    parameters = _parameters([True] * 3)
    bucket = _bucket(parameters)
    for number, parameter in enumerate(parameters):
        assert parameter.main_grad is not None and parameter.main_grad.shape == parameter.shape
        parameter.main_grad.add_(number + 1)
    assert bucket.grads.dtype == torch.float32
    assert bucket.grads.tolist() == [3.0] * 12 + [2.0] * 4 + [1.0] * 6  # backward order


@pytest.mark.parametrize(
    "counted, ranges",
    [
        ([True, True, True], [(0, 22)]),
        ([True, False, True], [(0, 12), (16, 22)]),
        ([False, True, False], [(12, 16)]),
        ([False, False, False], []),
    ],
)
def test_counted_ranges_are_merged(counted: list[bool], ranges: list[tuple[int, int]]) -> None:
    assert _bucket(_parameters(counted)).counted_ranges == ranges


def test_decay_is_that_of_the_class() -> None:
    parameters = _parameters([True] * 3)
    assert _bucket(parameters).decayed
    for parameter in parameters:
        parameter.spec = replace(parameter.spec, decayed=False)
    assert not _bucket(parameters).decayed


def test_any_flat_tensor_of_the_bucket_splits_into_its_parameters() -> None:
    parameters = _parameters([True] * 3)
    bucket = _bucket(parameters)
    found = {spec.name: view for spec, view in bucket.views(bucket.weights)}
    assert found.keys() == {p.spec.name for p in parameters}
    for parameter in parameters:
        assert found[parameter.spec.name].shape == parameter.shape
        assert found[parameter.spec.name].data_ptr() == parameter.data_ptr()


@pytest.mark.parametrize("owners", [2, 3, 5])
def test_owners_share_every_element_once_whatever_the_parameters(owners: int) -> None:
    """22 elements: the shares are equal, the last ends in zeros, and ranges of parameters are cut where shares meet."""
    parameters = _parameters([True, False, True])
    (plan,) = plan_buckets([p.spec for p in parameters], [p.numel() for p in parameters], 1000)
    found: list[tuple[str, int, list[float]]] = []
    counted = 0
    for coordinate in range(owners):
        own = [make_parameter(p.detach().clone(), p.spec) for p in parameters]
        bucket = FlatBucket(plan, own, torch.float64, (coordinate, owners))
        assert bucket.sharded and len(bucket.weights) == owners * len(bucket.owned_weights)
        assert not bucket.weights[22:].any() and bucket.owned_grads.data_ptr() != bucket.owned_weights.data_ptr()
        found += [(spec.name, first, flat.tolist()) for spec, first, flat in bucket.owned_views(bucket.owned_weights)]
        counted += sum(stop - start for start, stop in bucket.counted_ranges)
    assert counted == 6 + 12
    for parameter in parameters:
        parts = sorted((first, values) for name, first, values in found if name == parameter.spec.name)
        assert [first for first, _ in parts] == [sum(len(v) for _, v in parts[:i]) for i in range(len(parts))]
        assert [value for _, values in parts for value in values] == parameter.detach().reshape(-1).tolist()


def test_a_bucket_of_one_owner_is_whole() -> None:
    bucket = _bucket(_parameters([True] * 3))
    assert not bucket.sharded and bucket.owned == (0, 22)
    assert bucket.owned_weights.data_ptr() == bucket.weights.data_ptr()


@pytest.mark.parametrize("streamed", [False, True])
def test_gradients_taken_from_a_bucket_are_the_host_s(streamed: bool) -> None:
    parameters = _parameters([True] * 3)
    (plan,) = plan_buckets([p.spec for p in parameters], [p.numel() for p in parameters], 1000)
    pool = GradientPool(22, 11, torch.float32, torch.device("cpu")) if streamed else None
    bucket = FlatBucket(plan, parameters, torch.float32, (1, 2), pool)
    bucket.grads.copy_(torch.arange(22.0))
    if bucket.stream is not None and pool is not None:
        bucket.stream.send(DONE)
        pool.finish()
    taken = bucket.take_grads()
    assert bucket.grads_on_host == streamed and on_host(taken.untyped_storage())
    bucket.grads.zero_()
    assert taken.tolist() == list(range(11, 22))
