# SPDX-License-Identifier: Apache-2.0
"""Where linears leave the gradients of their weights: added at once, or queued for a later W action.

Zero-bubble schedules (Qi et al. 2023) run the input gradient on the critical path and the weight gradient in what would
have been a bubble. Under `deferred`, linears hand over closures instead of computing; the pipeline runtime calls them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from megatron_core.kernels.matmul import add_weight_gradient, weight_gradient
from megatron_core.tensor_parallel.shard_spec import SpecParameter

WeightGradients = Callable[[], list[torch.Tensor | None]]


class WeightGradientQueue:
    """Shared by all linears of one rank's model; holds closures only while `deferred` is open."""

    def __init__(self) -> None:
        self._pending: list[WeightGradients] | None = None

    @property
    def deferring(self) -> bool:
        """Whether closures are being collected."""
        return self._pending is not None

    @contextmanager
    def deferred(self) -> Iterator[list[WeightGradients]]:
        """Collect closures in this list, in backward order, instead of running them; they expect `torch.no_grad()`."""
        assert self._pending is None, "weight gradients are deferred already"
        pending = self._pending = []
        try:
            yield pending
        finally:
            self._pending = None

    def run(self, closure: WeightGradients, count: int) -> list[torch.Tensor | None]:
        """Run `closure` now, or keep it for the W action; what autograd is to receive for its `count` weights."""
        if self._pending is None:
            return closure()
        self._pending.append(closure)
        return [None] * count


def accumulate(weight: SpecParameter, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """Add the gradient of y = x W^T to `weight.main_grad` and signal its bucket, as autograd hooks do not fire for it.

    grad [..., m] and x [..., k] are viewed as matrices, as is the weight. Without a main_grad (a model outside a
    training run) the gradient is returned for autograd to keep.
    """
    grad, x = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    total = weight.main_grad
    if total is None:
        return weight_gradient(grad, x).view(weight.shape)
    add_weight_gradient(total.view(grad.shape[-1], x.shape[-1]), grad, x)
    weight.gradient_ready()
    return None
