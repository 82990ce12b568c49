# SPDX-License-Identifier: Apache-2.0
"""A tensor kept for backward by an autograd node of its own.

A function's `save_for_backward` takes effect only after its forward is done. A linear knows what it will need before
its product: kept here first, its input is the last thing that a recomputation makes, and neither the product nor the
reduction that follows it is done a second time (see `model/recompute.py`). As with any saved tensor, hooks for saved
tensors see it and a change of it before backward is an error.
"""

from typing import Any

import torch


class _Keep(torch.autograd.Function):
    """forward(anchor, x): nothing but a node that holds x. The anchor makes sure of the node where x needs no grad."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return anchor.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        raise AssertionError("a node that only keeps a tensor takes no part in backward")


class Kept:
    """Holds a tensor for as long as this object lives; without gradients (evaluation) it holds nothing."""

    def __init__(self, x: torch.Tensor) -> None:
        """To be made outside an autograd function, in whose forward gradients are off."""
        self._node: Any = None
        if torch.is_grad_enabled():
            self._node = _Keep.apply(torch.empty(0, requires_grad=True), x).grad_fn

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor; each reading passes the hooks for saved tensors."""
        (x,) = self._node.saved_tensors
        kept: torch.Tensor = x
        return kept
