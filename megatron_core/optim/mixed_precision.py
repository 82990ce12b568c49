# SPDX-License-Identifier: Apache-2.0
"""AdamW over what a rank owns of its buckets: 16-bit weights follow an fp32 master, wider ones are their own.

This class holds state and applies the rule; which gradients it is given, what factor they carry and whether the step is
skipped (fp16 overflow) is decided by the training step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.kernels.precision import at_least_fp32
from megatron_core.optim.adamw import AdamHyper, Moments, adamw_update


class Flat(Protocol):
    """What the optimizer needs of a bucket."""

    @property
    def owned_weights(self) -> torch.Tensor:
        """The weights that this rank updates, flat."""

    @property
    def owned_grads(self) -> torch.Tensor:
        """Their gradients, reduced, which may lie on the host."""

    @property
    def grads_on_host(self) -> bool:
        """Whether they do, wherever the weights are."""

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies."""


@dataclass(frozen=True)
class BucketState:
    """What the optimizer keeps of one bucket, in flat tensors that are laid out as the weights which the rank owns."""

    bucket: Flat
    master: torch.Tensor
    """The weights themselves unless they are 16-bit."""
    moments: Moments
    """In the master's dtype."""

    @property
    def has_master(self) -> bool:
        """Whether the master is a copy of its own."""
        return self.master.untyped_storage()._cdata != self.bucket.owned_weights.untyped_storage()._cdata


class MixedPrecisionAdamW:
    """The optimizer of one rank."""

    def __init__(self, buckets: Sequence[Flat], config: OptimConfig) -> None:
        self._hyper = AdamHyper(config.adam_beta1, config.adam_beta2, config.adam_eps)
        self.states: list[BucketState] = []
        """One a bucket, in the order of the buckets: what checkpoints save and load."""
        for bucket in buckets:
            master = at_least_fp32(bucket.owned_weights)
            self.states.append(BucketState(bucket, master, Moments(torch.zeros_like(master), torch.zeros_like(master))))

    def step(self, *, applied_steps: int, lr: float, weight_decay: float, grad_factor: float) -> None:
        """Update all weights. Gradients are multiplied by `grad_factor` (clipping, loss scale, token count)."""
        for state in self.states:
            adamw_update(
                state.master,
                at_least_fp32(state.bucket.owned_grads),
                state.moments,
                self._hyper,
                applied_steps=applied_steps,
                lr=lr,
                weight_decay=weight_decay if state.bucket.decayed else 0.0,
                grad_factor=grad_factor,
            )
            if state.has_master:
                state.bucket.owned_weights.copy_(state.master)

    def start_anew(self) -> None:
        """Take the present weights as the new masters and forget the moments: after weights alone were loaded."""
        for state in self.states:
            state.moments.m.zero_()
            state.moments.v.zero_()
            if state.has_master:
                state.master.copy_(state.bucket.owned_weights)
