# SPDX-License-Identifier: Apache-2.0
"""1-bit Adam (Tang et al., arXiv:2102.02888): AdamW until the variance is steady, then momentum in one bit an element.

    u_i = (b1 m + (1 - b1) g_i) / (sqrt(v^) + eps)      on rank i, from the gradient of its own samples alone
    u   = compressed average of u_i over dp             with error feedback
    m   = u (sqrt(v^) + eps),    x -= lr (u / (1 - b1^t) + decay x)

v^ = v / (1 - b2^F) stays as the F-th update left it. What is compressed is the update and not m itself, which is the
same up to fixed factors: elements of one scale are then alike, whatever their gradients' size, and one with a tiny
variance cannot be moved further than its neighbours.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.kernels.precision import at_least_fp32
from megatron_core.optim.mixed_precision import BucketState, Flat, MixedPrecisionAdamW
from megatron_core.optim.onebit_compress import Errors

# Below this share of eps, a gradient's size (the root of v^) does not count: Adam hardly moves such an element, but a
# sign would move it as far as all others.
_NEGLIGIBLE = 1e-3

# Elements worked on at a time on a CPU: what is made on the way stays in its cache. A GPU takes all at once.
_TILE = 2**16


class Exchange(Protocol):
    """What averages over dp."""

    errors: list[Errors]
    """What was lost before, one a bucket."""

    @property
    def size(self) -> int:
        """Number of ranks averaged over."""

    def average(self, values: Sequence[torch.Tensor], dead: Sequence[torch.Tensor]) -> None:
        """Replace `values` by their average; elements that are `dead` are 0 and stay 0."""

    def forget(self) -> None:
        """Forget what was lost before."""


class OneBitAdam:
    """The optimizer of one rank, which owns all of its buckets."""

    def __init__(self, buckets: Sequence[Flat], config: OptimConfig, exchange: Exchange) -> None:
        assert config.onebit_freeze_step is not None, "a validated run with 1-bit Adam has onebit_freeze_step"
        self._config, self._exchange, self._freeze_step = config, exchange, config.onebit_freeze_step
        self._adam = MixedPrecisionAdamW(buckets, config)
        self.states: list[BucketState] = self._adam.states
        """One a bucket, in the order of the buckets."""

    @property
    def errors(self) -> list[Errors]:
        """What compression has lost so far, one a bucket."""
        return self._exchange.errors

    def compresses(self, applied_steps: int) -> bool:
        """Whether the update after so many comes after the freeze."""
        return applied_steps >= self._freeze_step

    def step(self, *, applied_steps: int, lr: float, weight_decay: float, grad_factor: float) -> None:
        """Update all weights. Gradients, in sum over dp those of the batch, are multiplied by `grad_factor`.

        grad_factor must be the same on every rank. All dp ranks must call.
        """
        if not self.compresses(applied_steps):
            self._adam.step(applied_steps=applied_steps, lr=lr, weight_decay=weight_decay, grad_factor=grad_factor)
            return
        dead = [self._dead(state) for state in self.states]
        # A rank's estimate of the batch's gradient: the batch has `size` times the samples of its own.
        updates = [
            self._update(state, mask, grad_factor * self._exchange.size) for state, mask in zip(self.states, dead)
        ]
        self._exchange.average(updates, dead)
        step_size = lr / (1.0 - self._config.adam_beta1 ** (applied_steps + 1))
        for state, update in zip(self.states, updates):
            kept = 1.0 - lr * (weight_decay if state.bucket.decayed else 0.0)
            for u, m, v, x in _tiles(update, state.moments.m, state.moments.v, state.master):
                torch.mul(u, self._denominator(v), out=m)
                x.mul_(kept).add_(u, alpha=-step_size)
            if state.has_master:
                state.bucket.owned_weights.copy_(state.master)

    def start_anew(self) -> None:
        """Take the present weights as the new masters and forget moments and errors."""
        self._adam.start_anew()
        self._exchange.forget()

    def _update(self, state: BucketState, dead: torch.Tensor, grad_factor: float) -> torch.Tensor:
        """What this rank alone would have all ranks apply, in the gradients' memory where that is wide enough."""
        beta1 = self._config.adam_beta1
        update = at_least_fp32(state.bucket.owned_grads)
        for u, m, v, mask in _tiles(update, state.moments.m, state.moments.v, dead):
            u.mul_((1.0 - beta1) * grad_factor).add_(m, alpha=beta1).div_(self._denominator(v)).masked_fill_(mask, 0)
        return update

    def _denominator(self, v: torch.Tensor) -> torch.Tensor:
        return v.sqrt().mul_(1.0 / math.sqrt(self._bias)).add_(self._config.adam_eps)

    def _dead(self, state: BucketState) -> torch.Tensor:
        """Elements that had no gradient worth the name before the freeze: a sign cannot say that they stay."""
        return state.moments.v <= (_NEGLIGIBLE * self._config.adam_eps) ** 2 * self._bias

    @property
    def _bias(self) -> float:
        """Share of the variance's true size that its average had reached at the freeze."""
        return 1.0 - self._config.adam_beta2**self._freeze_step


def _tiles(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Matching parts of flat tensors of one size."""
    size = _TILE if tensors[0].device.type == "cpu" else max(tensors[0].numel(), 1)
    yield from zip(*(tensor.split(size) for tensor in tensors))


def takes_local_gradients(optimizer: object, applied_steps: int) -> bool:
    """Whether an optimizer's update after so many wants each dp rank's own gradients instead of their sum."""
    return isinstance(optimizer, OneBitAdam) and optimizer.compresses(applied_steps)
