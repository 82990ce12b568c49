# SPDX-License-Identifier: Apache-2.0
"""The offloaded optimizer against the device's, on the CPU bit for bit, with and without buckets that travel."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.optim import host_offload
from megatron_core.optim.host_offload import HostOffloadAdamW
from megatron_core.optim.host_transfers import HostTransfers
from megatron_core.optim.mixed_precision import BucketState, MixedPrecisionAdamW
from tests.fake_copies import Late
from tests.small_model import randn

CONFIG = OptimConfig(adam_beta2=0.95)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@dataclass(frozen=True)
class _Bucket:
    owned_weights: torch.Tensor
    owned_grads: torch.Tensor
    decayed: bool
    grads_on_host: bool = False


def _buckets(dtype: torch.dtype, narrow_grads: bool = False) -> list[_Bucket]:
    grad_dtype = dtype if narrow_grads or dtype == torch.float64 else torch.float32
    return [
        _Bucket(randn(n, seed=n).to(dtype), torch.zeros(n, dtype=grad_dtype), decayed)
        for n, decayed in ((1000, True), (37, False), (640, True))
    ]


def _run(optimizer: MixedPrecisionAdamW | HostOffloadAdamW, buckets: list[_Bucket], steps: int = 4) -> None:
    for step in range(steps):
        for bucket in buckets:
            bucket.owned_grads.copy_(randn(len(bucket.owned_grads), seed=step))
        optimizer.step(applied_steps=step, lr=0.01, weight_decay=0.1, grad_factor=0.3)


def _tensors(state: BucketState) -> list[torch.Tensor]:
    return [state.bucket.owned_weights, state.master, state.moments.m, state.moments.v]


def _assert_equal(one: MixedPrecisionAdamW | HostOffloadAdamW, other: MixedPrecisionAdamW | HostOffloadAdamW) -> None:
    for left, right in zip(one.states, other.states, strict=True):
        assert left.has_master == right.has_master
        assert all(torch.equal(a, b) for a, b in zip(_tensors(left), _tensors(right)))


def _compare(dtype: torch.dtype, narrow_grads: bool = False, directory: Path | None = None) -> None:
    ours, theirs = _buckets(dtype, narrow_grads), _buckets(dtype, narrow_grads)
    offloaded = HostOffloadAdamW(ours, CONFIG, threads=2, directory=directory)
    device = MixedPrecisionAdamW(theirs, CONFIG)
    _run(offloaded, ours)
    _run(device, theirs)
    offloaded.close()
    _assert_equal(offloaded, device)


@pytest.mark.parametrize("narrow_grads", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_the_device_to_the_bit(dtype: torch.dtype, narrow_grads: bool) -> None:
    _compare(dtype, narrow_grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equals_it_with_states_on_a_disk(dtype: torch.dtype, tmp_path: Path) -> None:
    _compare(dtype, directory=tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_equals_it_when_buckets_travel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    _let_travel(monkeypatch)
    _compare(dtype)


def _let_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        host_offload,
        "_transfers",
        lambda states, on_return: HostTransfers(
            [state.bucket for state in states],
            Late(),
            Late(),
            with_weights=not states[0].has_master,
            pinned=False,
            on_return=on_return,
        ),
    )


@pytest.mark.parametrize("travels", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masters_may_be_ahead_of_any_weights(
    dtype: torch.dtype, travels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step at once, and one whose weights come back later: both end where two steps of the device do."""
    if travels:
        _let_travel(monkeypatch)
    ours, theirs = _buckets(dtype), _buckets(dtype)
    offloaded = HostOffloadAdamW(ours, CONFIG, threads=2, with_masters=True)
    device = MixedPrecisionAdamW(theirs, CONFIG)
    _run(offloaded, ours, 1)
    before = [bucket.owned_weights.clone() for bucket in ours]
    grads = [randn(len(bucket.owned_weights), seed=1).to(bucket.owned_grads.dtype) for bucket in ours]
    offloaded.update_masters(grads, applied_steps=1, lr=0.01, weight_decay=0.1, grad_factor=0.3)
    assert all(torch.equal(bucket.owned_weights, old) for bucket, old in zip(ours, before))
    offloaded.return_weights()
    offloaded.close()
    _run(device, theirs, 2)
    for one, other in zip(offloaded.states, device.states, strict=True):
        assert one.has_master
        assert all(torch.equal(a, b) for a, b in zip(_tensors(one), _tensors(other)))


def test_only_16bit_weights_have_masters_on_the_host() -> None:
    for dtype in DTYPES:
        optimizer = HostOffloadAdamW(_buckets(dtype), CONFIG, threads=1)
        narrow = dtype.itemsize == 2
        assert [state.has_master for state in optimizer.states] == [narrow] * 3
        assert {state.moments.m.dtype for state in optimizer.states} == {torch.float32 if narrow else dtype}
        optimizer.close()


def test_starts_anew_from_the_weights_that_are_there() -> None:
    buckets = _buckets(torch.bfloat16)
    optimizer = HostOffloadAdamW(buckets, CONFIG, threads=2)
    _run(optimizer, buckets)
    for bucket in buckets:
        bucket.owned_weights.copy_(randn(len(bucket.owned_weights), seed=9))
    optimizer.start_anew()
    fresh = HostOffloadAdamW(buckets, CONFIG, threads=2)
    _assert_equal(optimizer, fresh)
    optimizer.close()
    fresh.close()


def test_says_which_weights_are_new_while_others_are_not() -> None:
    buckets, found = _buckets(torch.bfloat16), []
    before = [bucket.owned_weights.clone() for bucket in buckets]

    def look(number: int) -> None:
        found.append([not torch.equal(bucket.owned_weights, old) for bucket, old in zip(buckets, before)])
        assert len(found) == number + 1

    optimizer = HostOffloadAdamW(buckets, CONFIG, threads=2, on_return=look)
    _run(optimizer, buckets, 1)
    optimizer.close()
    assert found == [[True, False, False], [True, True, False], [True, True, True]]


def test_a_rank_without_parameters() -> None:
    optimizer = HostOffloadAdamW([], CONFIG, threads=2)
    optimizer.step(applied_steps=0, lr=0.1, weight_decay=0.0, grad_factor=1.0)
    optimizer.close()
    assert optimizer.states == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_follows_the_device_on_a_gpu(dtype: torch.dtype) -> None:
    found = []
    for offload in (True, False):
        buckets = [
            _Bucket(bucket.owned_weights.cuda(), bucket.owned_grads.cuda(), bucket.decayed)
            for bucket in _buckets(dtype)
        ]
        optimizer = HostOffloadAdamW(buckets, CONFIG, threads=2) if offload else MixedPrecisionAdamW(buckets, CONFIG)
        _run(optimizer, buckets)
        found.append([state.master.cpu() for state in optimizer.states])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
