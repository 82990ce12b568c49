# SPDX-License-Identifier: Apache-2.0
"""Buckets through two slots, with copies that happen as late, or as early, as the contract lets them."""

from dataclasses import dataclass

import pytest
import torch

from megatron_core.optim.host_transfers import HostTransfers
from megatron_core.parallel.host_copies import Copies, CudaCopies
from tests.fake_copies import Early, Late
from tests.small_model import randn

SIZES = [[], [5], [5, 3], [3, 5], [4, 7, 1, 6, 2]]


@dataclass(frozen=True)
class _Bucket:
    owned_weights: torch.Tensor
    owned_grads: torch.Tensor
    decayed: bool = True
    grads_on_host: bool = False


def _buckets(sizes: list[int], dtype: torch.dtype, on_host: tuple[int, ...] = ()) -> list[_Bucket]:
    """`on_host`: sizes whose gradients are there."""
    return [
        _Bucket(randn(n, seed=n).to(dtype), randn(n, seed=n + 100).float(), grads_on_host=n in on_host) for n in sizes
    ]


def _check(buckets: list[_Bucket], down: Copies, up: Copies) -> None:
    """Replace each bucket's weights by what depends on all that has come down."""
    wide = not buckets or buckets[0].owned_weights.dtype == torch.float32
    expected = [bucket.owned_grads * 2 + (bucket.owned_weights if wide else 0) for bucket in buckets]
    returned: list[int] = []
    for grad, weights in HostTransfers(
        buckets, down, up, with_weights=wide, pinned=False, on_return=returned.append
    ).each():
        weights.copy_(grad * 2 + (weights if wide else 0))
    assert returned == list(range(len(buckets)))
    for bucket, values in zip(buckets, expected, strict=True):
        assert torch.equal(bucket.owned_weights, values.to(bucket.owned_weights.dtype))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_bucket_goes_down_and_back(sizes: list[int], dtype: torch.dtype) -> None:
    _check(_buckets(sizes, dtype), Late(), Late())
    _check(_buckets(sizes, dtype), Early("down", []), Early("up", []))
    _check(_buckets(sizes, dtype), Late(), Early("up", []))
    _check(_buckets(sizes, dtype), Early("down", []), Late())


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("up", [Late(), Early("up", [])])
def test_masters_are_given_to_the_weights(sizes: list[int], up: Copies) -> None:
    buckets, returned = _buckets(sizes, torch.bfloat16), []
    transfers = HostTransfers(buckets, Late(), up, with_weights=False, pinned=False, on_return=returned.append)
    for step in range(2):
        masters = [torch.randn(n, generator=torch.Generator().manual_seed(step)) for n in sizes]
        transfers.give(masters)
        assert all(torch.equal(bucket.owned_weights, m.bfloat16()) for bucket, m in zip(buckets, masters, strict=True))
    assert returned == 2 * list(range(len(sizes)))


def test_the_next_bucket_comes_and_the_last_returns_meanwhile() -> None:
    log: list[str] = []
    transfers = HostTransfers(
        _buckets([4] * 3, torch.bfloat16),
        Early("down", log),
        Early("up", log),
        with_weights=False,
        pinned=False,
        on_return=lambda number: log.append(f"returned {number}"),
    )
    for number, _ in enumerate(transfers.each()):
        log.append(f"update {number}")
    assert log == [
        "down after device",
        "up after device",
        "down 0",
        "down 1",
        "wait down 0",
        "update 0",
        "up 0",
        "device after up",
        "returned 0",
        "down 2",
        "wait down 1",
        "update 1",
        "up 1",
        "device after up",
        "returned 1",
        "wait down 2",
        "wait up 0",
        "update 2",
        "up 2",
        "device after up",
        "returned 2",
    ]


@pytest.mark.parametrize("on_host", [(3, 4, 5), (5,), (4, 1, 2)])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_that_are_there_do_not_travel(sizes: list[int], dtype: torch.dtype, on_host: tuple[int, ...]) -> None:
    _check(_buckets(sizes, dtype, on_host), Late(), Late())
    log: list[str] = []
    buckets = _buckets(sizes, dtype, on_host)
    transfers = HostTransfers(
        buckets,
        Early("down", log),
        Early("up", log),
        with_weights=dtype == torch.float32,
        pinned=False,
        on_return=lambda _: None,
    )
    for bucket, (grads, _) in zip(buckets, transfers.each()):
        assert (grads is bucket.owned_grads) == bucket.grads_on_host
    expected = sum(not bucket.grads_on_host for bucket in buckets) + (len(sizes) if dtype == torch.float32 else 0)
    assert sum(line.startswith("down ") and line[5:].isdigit() for line in log) == expected


def test_the_pool_is_of_two_buckets() -> None:
    buckets = _buckets([4, 9, 2], torch.bfloat16)
    transfers = HostTransfers(buckets, Late(), Late(), with_weights=False, pinned=False, on_return=lambda _: None)
    grads = [grad.untyped_storage() for grad, _ in transfers.each()]
    assert len({storage.data_ptr() for storage in grads}) == 2
    assert {storage.nbytes() for storage in grads} == {9 * 4}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    device = torch.device("cuda")
    for dtype in (torch.bfloat16, torch.float32):
        buckets = [
            _Bucket(bucket.owned_weights.to(device), bucket.owned_grads.to(device))
            for bucket in _buckets([2**20, 2**18, 2**20 - 1, 7], dtype)
        ]
        expected = [
            bucket.owned_grads * 2 + (bucket.owned_weights if dtype == torch.float32 else 0) for bucket in buckets
        ]
        down, up = CudaCopies(device), CudaCopies(device)
        for grad, weights in HostTransfers(
            buckets, down, up, with_weights=dtype == torch.float32, pinned=True, on_return=lambda _: None
        ).each():
            weights.copy_(grad * 2 + (weights if dtype == torch.float32 else 0))
        for bucket, values in zip(buckets, expected):
            assert torch.equal(bucket.owned_weights, values.to(dtype))
