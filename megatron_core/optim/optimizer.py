# SPDX-License-Identifier: Apache-2.0
"""What a training step and a checkpoint know of an optimizer, wherever its states lie and whatever its rule."""

from typing import Protocol

from megatron_core.optim.mixed_precision import BucketState


class Optimizer(Protocol):
    """The optimizer of one rank."""

    @property
    def states(self) -> list[BucketState]:
        """One a bucket, in the order of the buckets: what checkpoints save and load."""

    def step(self, *, applied_steps: int, lr: float, weight_decay: float, grad_factor: float) -> None:
        """Update what the rank owns. Gradients are multiplied by `grad_factor` (clipping, loss scale, token count)."""

    def start_anew(self) -> None:
        """Take the present weights as the new masters and forget the rest: after weights alone were loaded."""
