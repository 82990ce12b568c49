# SPDX-License-Identifier: Apache-2.0
"""AdamW on flat tensors (Loshchilov and Hutter 2019): torch's fused kernel, with the gradient's factor folded in."""

from dataclasses import dataclass

import torch
from torch.optim.adamw import adamw


@dataclass(frozen=True)
class AdamHyper:
    """Constants of the rule."""

    beta1: float
    beta2: float
    eps: float


@dataclass(frozen=True)
class Moments:
    """First and second moment of one flat tensor, updated in place."""

    m: torch.Tensor
    v: torch.Tensor


def adamw_update(
    weights: torch.Tensor,
    grad: torch.Tensor,
    moments: Moments,
    hyper: AdamHyper,
    *,
    applied_steps: int,
    lr: float,
    weight_decay: float,
    grad_factor: float,
) -> None:
    """One step in place: weights [n], grad [n] and moments [n] in one dtype; `grad` times `grad_factor` is used.

    `applied_steps` counts the updates made before this one; every tensor of a run shares it.
    """
    grad_scale = None
    if grad.dtype == torch.float64 or grad_factor == 0.0:
        grad.mul_(grad_factor)  # the fused kernel divides by its scale, which it reads as fp32
    elif grad_factor != 1.0:
        grad_scale = _scalar(1.0 / grad_factor, grad.device)
    adamw(
        [weights],
        [grad],
        [moments.m],
        [moments.v],
        [],
        [_scalar(float(applied_steps), grad.device)],
        fused=True,
        grad_scale=grad_scale,
        amsgrad=False,
        beta1=hyper.beta1,
        beta2=hyper.beta2,
        lr=lr,
        weight_decay=weight_decay,
        eps=hyper.eps,
        maximize=False,
    )


def _scalar(value: float, device: torch.device) -> torch.Tensor:
    """An fp32 number made on the device: copying one from the host would wait for the stream, once a bucket."""
    return torch.full((), value, dtype=torch.float32, device=device)
