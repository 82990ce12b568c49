# SPDX-License-Identifier: Apache-2.0
"""Masters, moments and decay over buckets of different dtypes."""

from dataclasses import dataclass

import pytest
import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.optim.mixed_precision import MixedPrecisionAdamW
from tests.small_model import randn

CONFIG = OptimConfig(adam_beta2=0.95)
ALL_DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@dataclass(frozen=True)
class _Bucket:
    weights: torch.Tensor
    grads: torch.Tensor
    decayed: bool = True

    @property
    def owned_weights(self) -> torch.Tensor:
        return self.weights

    @property
    def owned_grads(self) -> torch.Tensor:
        return self.grads


def _bucket(values: torch.Tensor, dtype: torch.dtype, decayed: bool = True) -> _Bucket:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return _Bucket(values.to(dtype, copy=True), torch.zeros(values.shape, dtype=wide), decayed)


def _run(buckets: list[_Bucket], steps: int = 5, lr: float = 0.01, weight_decay: float = 0.1) -> MixedPrecisionAdamW:
    optimizer = MixedPrecisionAdamW(buckets, CONFIG)
    for step in range(steps):
        for bucket in buckets:
            bucket.grads.copy_(randn(*bucket.grads.shape, seed=step))
        optimizer.step(applied_steps=step, lr=lr, weight_decay=weight_decay, grad_factor=1.0)
    return optimizer


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_equal_buckets_stay_equal_bit_for_bit(dtype: torch.dtype) -> None:
    buckets = [_bucket(randn(100), dtype) for _ in range(3)]
    _run(buckets)
    assert torch.equal(buckets[0].weights, buckets[1].weights) and torch.equal(buckets[0].weights, buckets[2].weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16bit_weights_are_the_rounded_masters(dtype: torch.dtype) -> None:
    start = randn(100).to(dtype)
    narrow, wide = _bucket(start, dtype), _bucket(start.float(), torch.float32)
    _run([narrow, wide], steps=50)
    assert torch.equal(narrow.weights, wide.weights.to(dtype))
    assert not torch.equal(narrow.weights, start)


def test_updates_too_small_for_bf16_add_up() -> None:
    bucket = _bucket(torch.ones(1), torch.bfloat16)
    optimizer = MixedPrecisionAdamW([bucket], CONFIG)
    for step in range(100):
        bucket.grads.fill_(1.0)
        optimizer.step(applied_steps=step, lr=1e-3, weight_decay=0.0, grad_factor=1.0)
    assert bucket.weights.item() == pytest.approx(0.9, abs=2**-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_weights_match_torch(dtype: torch.dtype) -> None:
    decayed, free = _bucket(randn(60), dtype), _bucket(randn(40, seed=1), dtype, decayed=False)
    parameters = [torch.nn.Parameter(bucket.weights.clone()) for bucket in (decayed, free)]
    reference = torch.optim.AdamW(
        [{"params": parameters[:1], "weight_decay": 0.1}, {"params": parameters[1:], "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.95),
    )
    _run([decayed, free])
    for step in range(5):
        for parameter in parameters:
            parameter.grad = randn(*parameter.shape, seed=step).to(dtype)
        reference.step()
    tolerance = 1e-7 if dtype == torch.float32 else 1e-12
    for bucket, parameter in zip((decayed, free), parameters):
        torch.testing.assert_close(bucket.weights, parameter.detach(), rtol=tolerance, atol=tolerance)


def test_padding_stays_zero() -> None:
    bucket = _bucket(torch.zeros(8), torch.float32)
    MixedPrecisionAdamW([bucket], CONFIG).step(applied_steps=0, lr=0.1, weight_decay=0.1, grad_factor=0.5)
    assert not bucket.weights.any()


def test_16bit_gradients_are_widened_for_the_update() -> None:
    narrow = _Bucket(torch.ones(4), torch.full((4,), 2.0, dtype=torch.bfloat16))
    wide = _Bucket(torch.ones(4), torch.full((4,), 2.0))
    for bucket in (narrow, wide):
        MixedPrecisionAdamW([bucket], CONFIG).step(applied_steps=0, lr=0.1, weight_decay=0.0, grad_factor=0.25)
    assert torch.equal(narrow.weights, wide.weights)


def test_loaded_weights_become_the_masters_and_moments_are_forgotten() -> None:
    bucket = _bucket(torch.ones(2), torch.bfloat16)
    optimizer = _run([bucket], steps=1)
    bucket.weights.fill_(5.0)
    optimizer.start_anew()
    (state,) = optimizer.states
    assert not state.moments.m.any() and not state.moments.v.any()
    bucket.grads.zero_()
    optimizer.step(applied_steps=1, lr=0.0, weight_decay=0.0, grad_factor=1.0)
    assert bucket.weights.tolist() == [5.0, 5.0]
