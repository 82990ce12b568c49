# SPDX-License-Identifier: Apache-2.0
"""The loss scale of fp16 training as a state and a pure step (Micikevicius et al., arXiv:1710.03740, section 3.2).

fp16 gradients below 6e-8 vanish, so the loss is multiplied by a scale before backward and gradients are divided by it
after. Too large a scale overflows: the step is skipped and, once patience (hysteresis) is spent, the scale halves. A
whole window of clean steps doubles it and gives the patience back. One clean step gives back nothing: an overflow every
other step must still bring the scale down.
"""

from dataclasses import dataclass, replace

from megatron_core.config.optim import OptimConfig


@dataclass(frozen=True)
class LossScale:
    """All that a checkpoint needs to continue the scale's history."""

    scale: float
    clean_steps: int = 0
    """Steps without overflow since the last overflow or doubling."""
    hysteresis_left: int = 0
    """Overflows until the scale halves; at 0 and 1 the next one does."""


def initial(optim: OptimConfig) -> LossScale:
    """The state at the first step: fp16 starts at the fixed or the initial scale, other precisions stay at 1."""
    if optim.precision != "fp16":
        return LossScale(scale=1.0)
    if optim.loss_scale is not None:
        return LossScale(scale=optim.loss_scale)
    return LossScale(scale=optim.initial_loss_scale, hysteresis_left=optim.hysteresis)


def update(state: LossScale, overflow: bool, *, window: int, hysteresis: int, min_scale: float) -> LossScale:
    """The dynamic scale after a step that did or did not overflow.

    window: clean steps before it doubles; hysteresis: overflows before it halves; min_scale: where halving stops.
    """
    if overflow:
        left = max(state.hysteresis_left - 1, 0)
        scale = state.scale if left > 0 else max(state.scale / 2, min_scale)
        return LossScale(scale, clean_steps=0, hysteresis_left=left)
    if state.clean_steps + 1 < window:
        return replace(state, clean_steps=state.clean_steps + 1)
    return LossScale(state.scale * 2, clean_steps=0, hysteresis_left=hysteresis)


def after_step(state: LossScale, overflow: bool, optim: OptimConfig) -> LossScale:
    """`update` with the configured numbers; a fixed scale, and every precision but fp16, stays as it is."""
    if optim.precision != "fp16" or optim.loss_scale is not None:
        return state
    return update(
        state,
        overflow,
        window=optim.loss_scale_window,
        hysteresis=optim.hysteresis,
        min_scale=optim.min_loss_scale,
    )
