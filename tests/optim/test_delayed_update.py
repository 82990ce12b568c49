# SPDX-License-Identifier: Apache-2.0
"""The delayed update against the rule in plain torch, with steps that are skipped and rates that change."""

import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.optim.adamw import adamw

from megatron_core.config.optim import OptimConfig
from megatron_core.optim.delayed_update import DelayedAdamW
from megatron_core.optim.host_offload import HostOffloadAdamW
from tests.small_model import randn

CONFIG = OptimConfig(adam_beta2=0.95)


@dataclass(frozen=True)
class _Bucket:
    owned_weights: torch.Tensor
    owned_grads: torch.Tensor
    decayed: bool = True
    grads_on_host: bool = False

    def take_grads(self) -> torch.Tensor:
        return self.owned_grads.clone()


def _bucket(size: int, dtype: torch.dtype = torch.float64) -> _Bucket:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return _Bucket(randn(size, seed=size).to(dtype), torch.zeros(size, dtype=wide))


def _delayed(buckets: list[_Bucket], start: int) -> DelayedAdamW:
    return DelayedAdamW(buckets, HostOffloadAdamW(buckets, CONFIG, threads=1, with_masters=True), start=start)


def _gradient(weights: torch.Tensor) -> torch.Tensor:
    """Of sum (x - i)^2 / 2: it depends on where the weights are."""
    return weights - torch.arange(len(weights), dtype=weights.dtype)


def _numbers(step: int) -> dict[str, float]:
    return {"lr": 0.1 / (step + 1), "weight_decay": 0.1 * step, "grad_factor": 0.5 + step}


class Reference:
    """The rule in one tensor; `x` is what gradients are taken at, `ahead` what the last update makes of it."""

    def __init__(self, weights: torch.Tensor, start: int) -> None:
        self.x, self.ahead, self._start = weights.clone(), weights.clone(), start
        self._m, self._v = torch.zeros_like(weights), torch.zeros_like(weights)
        self._updates = torch.zeros(())

    def step(self, grad: torch.Tensor, lr: float, weight_decay: float, grad_factor: float) -> None:
        late = self._updates.item() >= self._start
        if late:
            self.x = self.ahead.clone()
        adamw(
            [self.ahead],
            [grad * grad_factor],
            [self._m],
            [self._v],
            [],
            [self._updates],
            foreach=False,
            amsgrad=False,
            maximize=False,
            beta1=CONFIG.adam_beta1,
            beta2=CONFIG.adam_beta2,
            eps=CONFIG.adam_eps,
            lr=lr,
            weight_decay=weight_decay,
        )
        if not late:
            self.x = self.ahead.clone()

    def pass_over(self) -> None:
        self.x = self.ahead.clone()


@pytest.mark.parametrize("skipped", [(), (0,), (4,), (3, 4, 7)])
@pytest.mark.parametrize("start", [0, 3, 100])
def test_follows_the_rule(start: int, skipped: tuple[int, ...]) -> None:
    buckets = [_bucket(5), _bucket(3)]
    optimizer = _delayed(buckets, start)
    references = [Reference(bucket.owned_weights, start) for bucket in buckets]
    applied = 0
    for step in range(9):
        for bucket in buckets:
            bucket.owned_grads.copy_(_gradient(bucket.owned_weights))
        if step in skipped:
            optimizer.pass_over()
        else:
            optimizer.step(applied_steps=applied, **_numbers(step))
            applied += 1
        for bucket, reference in zip(buckets, references):
            if step in skipped:
                reference.pass_over()
            else:
                reference.step(_gradient(reference.x), **_numbers(step))
            torch.testing.assert_close(bucket.owned_weights, reference.x, rtol=1e-12, atol=1e-14)
    for state, reference in zip(optimizer.states, references):
        torch.testing.assert_close(state.master, reference.ahead, rtol=1e-12, atol=1e-14)
    optimizer.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_are_those_of_all_updates_but_the_last(dtype: torch.dtype) -> None:
    ours, theirs = [_bucket(7, dtype)], [_bucket(7, dtype)]
    late, at_once = _delayed(ours, 0), HostOffloadAdamW(theirs, CONFIG, threads=1)
    before = theirs[0].owned_weights.clone()
    for step in range(4):
        assert torch.equal(ours[0].owned_weights, before)
        before = theirs[0].owned_weights.clone()
        for bucket in (*ours, *theirs):
            bucket.owned_grads.copy_(randn(7, seed=step))
        late.step(applied_steps=step, **_numbers(step))
        at_once.step(applied_steps=step, **_numbers(step))
    assert torch.equal(late.states[0].master.to(dtype), theirs[0].owned_weights)
    late.close()
    at_once.close()


class _Held:
    """Updates of masters that wait to be let go."""

    def __init__(self, adam: HostOffloadAdamW) -> None:
        self._adam, self.go = adam, threading.Event()
        self._update = adam.update_masters

    def update_masters(self, grads: list[torch.Tensor], **numbers: Any) -> None:
        assert self.go.wait(60)
        self._update(grads, **numbers)


def test_the_step_returns_while_the_host_still_updates_and_whoever_looks_waits() -> None:
    buckets = [_bucket(5)]
    adam = HostOffloadAdamW(buckets, CONFIG, threads=1, with_masters=True)
    held = _Held(adam)
    adam.update_masters = held.update_masters  # type: ignore[method-assign]
    optimizer = DelayedAdamW(buckets, adam, start=0)
    before = buckets[0].owned_weights.clone()
    buckets[0].owned_grads.fill_(1.0)
    optimizer.step(applied_steps=0, **_numbers(0))
    buckets[0].owned_grads.fill_(torch.nan)  # the next step's, which is none of its business
    assert torch.equal(adam.states[0].master, before) and torch.equal(buckets[0].owned_weights, before)
    held.go.set()
    assert not torch.equal(optimizer.states[0].master, before)
    assert torch.equal(buckets[0].owned_weights, before), "to look changes nothing"
    optimizer.close()


def test_what_goes_wrong_on_the_host_is_raised_where_it_is_waited_for() -> None:
    buckets = [_bucket(5)]
    adam = HostOffloadAdamW(buckets, CONFIG, threads=1, with_masters=True)
    optimizer = DelayedAdamW(buckets, adam, start=0)

    def fail(grads: list[torch.Tensor], **numbers: Any) -> None:
        raise RuntimeError("no memory left")

    for look in (
        lambda: optimizer.step(applied_steps=1, **_numbers(1)),
        optimizer.pass_over,
        lambda: optimizer.states,
        optimizer.start_anew,
        optimizer.close,
    ):
        adam.update_masters = fail  # type: ignore[method-assign]
        optimizer.step(applied_steps=0, **_numbers(0))
        with pytest.raises(RuntimeError, match="no memory left"):
            look()


def test_starts_anew_from_the_weights_that_are_there() -> None:
    buckets = [_bucket(5, torch.bfloat16)]
    optimizer = _delayed(buckets, 0)
    buckets[0].owned_grads.fill_(1.0)
    optimizer.step(applied_steps=0, **_numbers(0))
    optimizer.start_anew()
    (state,) = optimizer.states
    assert torch.equal(state.master, buckets[0].owned_weights.float())
    assert not state.moments.m.any() and not state.moments.v.any()
    optimizer.close()
