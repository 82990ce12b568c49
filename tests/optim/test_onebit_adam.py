# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam's rule: warm-up, freeze, what is exchanged and what stays."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.data_parallel.buckets import Bucket, BucketClass, Slot
from megatron_core.data_parallel.compressed_exchange import CompressedExchange
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.optim.mixed_precision import MixedPrecisionAdamW
from megatron_core.optim.onebit_adam import OneBitAdam, takes_local_gradients
from megatron_core.optim.onebit_compress import Errors
from megatron_core.tensor_parallel.shard_spec import ShardSpec, make_parameter
from tests.small_model import ALONE, randn

FREEZE = 8
CONFIG = OptimConfig(optimizer="onebit-adam", onebit_freeze_step=FREEZE)


@dataclass
class _Lossless:
    """An exchange over one rank that loses nothing."""

    size: int = 1
    forgotten: bool = False
    errors: list[Errors] = field(default_factory=list)

    def average(self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor]) -> None:
        assert all(not value[mask].any() for value, mask in zip(values, dead))

    def forget(self) -> None:
        self.forgotten = True


def _bucket(weights: torch.Tensor, sizes: Sequence[int] = (), *, decayed: bool = True) -> FlatBucket:
    slots, start = [], 0
    for number, size in enumerate(sizes or [weights.numel()]):
        slots.append(Slot(number, start, start + size))
        start += size
    parts = weights.split(list(sizes or [weights.numel()]))
    parameters = [make_parameter(p.clone(), ShardSpec(name=str(i), shape=tuple(p.shape))) for i, p in enumerate(parts)]
    wide = torch.float64 if weights.dtype == torch.float64 else torch.float32
    return FlatBucket(Bucket(BucketClass(decayed, None, False), tuple(slots)), parameters, wide)


def _step(
    optimizer: OneBitAdam | MixedPrecisionAdamW, bucket: FlatBucket, step: int, grad: torch.Tensor, **changes: float
) -> None:
    bucket.grads.copy_(grad)
    optimizer.step(**{"applied_steps": step, "lr": 0.01, "weight_decay": 0.0, "grad_factor": 1.0, **changes})  # type: ignore[arg-type]


def _grad(n: int, step: int) -> torch.Tensor:
    return randn(n, seed=step) + 0.5


def _compressing(bucket: FlatBucket, config: OptimConfig = CONFIG) -> tuple[OneBitAdam, CompressedExchange]:
    exchange = CompressedExchange([bucket], ALONE)
    return OneBitAdam([bucket], config, exchange), exchange


def test_the_phases_part_at_the_freeze_step() -> None:
    optimizer, _ = _compressing(_bucket(randn(4)))
    assert not any(takes_local_gradients(optimizer, n) for n in range(FREEZE))
    assert takes_local_gradients(optimizer, FREEZE) and takes_local_gradients(optimizer, FREEZE + 1)
    assert not takes_local_gradients(MixedPrecisionAdamW([_bucket(randn(4))], CONFIG), FREEZE)


def test_warm_up_is_adamw_to_the_bit_from_the_first_step_on() -> None:
    ours, theirs = _bucket(randn(50)), _bucket(randn(50))
    onebit, _ = _compressing(ours)
    adam = MixedPrecisionAdamW([theirs], CONFIG)
    for step in range(FREEZE):
        before = ours.weights.clone()
        for optimizer, bucket in ((onebit, ours), (adam, theirs)):
            _step(optimizer, bucket, step, _grad(50, step), weight_decay=0.1, grad_factor=0.5)
        assert torch.equal(ours.weights, theirs.weights)
        assert not torch.equal(ours.weights, before), f"step {step} moved nothing"


def test_with_a_lossless_exchange_it_is_adam_whose_variance_stands_still() -> None:
    bucket = _bucket(randn(50))
    optimizer = OneBitAdam([bucket], CONFIG, _Lossless())
    for step in range(FREEZE):
        _step(optimizer, bucket, step, _grad(50, step))
    (state,) = optimizer.states
    m, v, x = state.moments.m.clone(), state.moments.v.clone(), bucket.weights.clone()
    for step in range(FREEZE, FREEZE + 20):
        grad = _grad(50, step)
        m = 0.9 * m + 0.1 * (0.25 * grad)
        x = x - 0.01 * (m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.999**FREEZE)).sqrt() + 1e-8) + 0.1 * x)
        _step(optimizer, bucket, step, grad, weight_decay=0.1, grad_factor=0.25)
        torch.testing.assert_close(bucket.weights, x, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(state.moments.m, m, rtol=1e-12, atol=1e-14)
    assert torch.equal(state.moments.v, v)


def test_an_early_freeze_keeps_the_step_size() -> None:
    """Without bias correction the frozen variance is 1 - 0.999^8 = 1/125 of its size, steps 11 times too long."""
    bucket = _bucket(torch.zeros(1000, dtype=torch.float64))
    optimizer, _ = _compressing(bucket)
    lengths = []
    for step in range(FREEZE + 4):
        before = bucket.weights.clone()
        _step(optimizer, bucket, step, torch.ones(1000))
        lengths.append((bucket.weights - before).norm().item())
    assert lengths == pytest.approx([lengths[0]] * len(lengths), rel=5e-3)  # scales are rounded to bf16


def test_each_parameter_has_a_scale_of_its_own_and_gradients_may_be_of_any_size() -> None:
    sizes = (100, 100)
    bucket = _bucket(torch.zeros(200, dtype=torch.float64), sizes)
    optimizer, _ = _compressing(bucket)
    factors = torch.cat([torch.full((100,), 1e-5), torch.full((50,), 1.0), torch.full((50,), 1e4)]).double()
    reference = _bucket(torch.zeros(200, dtype=torch.float64), sizes)
    adam = OneBitAdam([reference], CONFIG, _Lossless())
    for step in range(FREEZE + 100):
        grad = _grad(200, step) * factors
        _step(optimizer, bucket, step, grad)
        _step(adam, reference, step, grad)
    moved, expected = bucket.weights, reference.weights
    # Compressing m itself, the second part would move 10,000 times too far: its sign with the third one's size.
    for part in (slice(0, 100), slice(100, 150), slice(150, 200)):
        assert (moved[part] - expected[part]).norm() < 0.3 * expected[part].norm()


def test_what_never_had_a_gradient_moves_by_decay_alone() -> None:
    start = randn(64)
    unseen = torch.arange(64) % 10 == 3
    bucket = _bucket(start)
    optimizer, exchange = _compressing(bucket)
    assert optimizer.errors is exchange.errors
    for step in range(FREEZE + 200):
        # Rounding noise instead of zero, as a key's bias has it, counts as nothing too.
        grad = torch.where(unseen, 1e-18 * randn(64, seed=step), _grad(64, step))
        grad[3] = 0.0
        _step(optimizer, bucket, step, grad, weight_decay=0.1)
    after_warm_up = start[unseen] * (1 - 0.01 * 0.1) ** (FREEZE + 200)
    torch.testing.assert_close(bucket.weights[unseen], after_warm_up, rtol=1e-9, atol=1e-9)
    assert not exchange.errors[0].worker[unseen].any() and not exchange.errors[0].server[:64][unseen].any()
    assert not optimizer.states[0].moments.m[unseen].any()


def test_a_gradient_that_comes_only_after_the_freeze_is_left_out_and_disturbs_no_other() -> None:
    moved = []
    for late in (0.0, 100.0):
        bucket = _bucket(torch.zeros(16, dtype=torch.float64))
        optimizer, _ = _compressing(bucket)
        for step in range(FREEZE + 5):
            grad = _grad(16, step)
            grad[5] = late if step >= FREEZE else 0.0
            _step(optimizer, bucket, step, grad)
        assert bucket.weights[5].item() == 0.0
        moved.append(bucket.weights)
    assert torch.equal(*moved)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16bit_weights_follow_their_masters(dtype: torch.dtype) -> None:
    bucket = _bucket(randn(64).to(dtype))
    optimizer, _ = _compressing(bucket)
    for step in range(FREEZE + 3):
        _step(optimizer, bucket, step, _grad(64, step))
    (state,) = optimizer.states
    assert state.master.dtype == torch.float32
    assert torch.equal(bucket.weights, state.master.to(dtype))


def test_no_decay_where_the_bucket_has_none() -> None:
    moved = []
    for decay in (0.0, 0.5):
        bucket = _bucket(randn(16), decayed=False)
        optimizer, _ = _compressing(bucket)
        for step in range(FREEZE + 2):
            _step(optimizer, bucket, step, _grad(16, step), weight_decay=decay)
        moved.append(bucket.weights)
    assert torch.equal(*moved)


def test_a_rank_counts_its_gradient_as_the_whole_batchs() -> None:
    """Over 4 ranks the batch's gradient is the sum, so that one rank's share stands for four times its size."""
    bucket = _bucket(torch.zeros(8, dtype=torch.float64))
    optimizer = OneBitAdam([bucket], CONFIG, _Lossless(size=4))
    for step in range(FREEZE):
        _step(optimizer, bucket, step, torch.ones(8))
    (state,) = optimizer.states
    m = state.moments.m.clone()
    _step(optimizer, bucket, FREEZE, torch.full((8,), 0.25))
    torch.testing.assert_close(state.moments.m, 0.9 * m + 0.1)


def test_starting_anew_forgets_moments_and_errors() -> None:
    bucket = _bucket(torch.ones(8, dtype=torch.bfloat16))
    exchange = _Lossless()
    optimizer = OneBitAdam([bucket], CONFIG, exchange)
    _step(optimizer, bucket, 0, torch.ones(8))
    bucket.weights.fill_(5.0)
    optimizer.start_anew()
    (state,) = optimizer.states
    assert exchange.forgotten and not state.moments.m.any() and not state.moments.v.any()
    assert state.master.tolist() == [5.0] * 8
