# SPDX-License-Identifier: Apache-2.0
"""The learning rate as a function of what has been applied: warm-up, decay, floor.

Rule: the update after which n updates have been applied *before* uses `at(n)`, so the very first one uses the value at
position 0 (with warm-up: `lr_warmup_init`). A step skipped for an fp16 overflow applies nothing and so moves no
schedule. Positions are steps with --train-iters and samples with --train-samples. Shapes follow Megatron-LM's
(warm-up then decay as in Smith, arXiv:1608.03983 p. 4; warm-up–stable–decay as in MiniCPM, arXiv:2404.06395 section 4).
"""

import math
from dataclasses import dataclass
from typing import Literal

from megatron_core.config.optim import OptimConfig
from megatron_core.config.training import TrainingConfig

Unit = Literal["steps", "samples"]
DecayStyle = Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"]
WSDStyle = Literal["exponential", "linear", "cosine", "minus_sqrt"]


@dataclass(frozen=True)
class Applied:
    """How much the weights have taken in: updates applied and the samples in them (skipped steps add nothing)."""

    steps: int = 0
    samples: int = 0

    def plus(self, batch_size: int) -> "Applied":
        """After one more applied update over `batch_size` samples."""
        return Applied(self.steps + 1, self.samples + batch_size)

    def position(self, unit: Unit) -> int:
        """The abscissa of a schedule that counts in `unit`."""
        return self.samples if unit == "samples" else self.steps


def schedule_unit(training: TrainingConfig) -> Unit:
    """What schedules count in: samples where the run's length is given in samples, else steps."""
    return "samples" if training.train_samples is not None else "steps"


@dataclass(frozen=True, kw_only=True)
class LRSchedule:
    """lr(position): linear warm-up to `peak`, then a decay to `floor` that ends at `length`."""

    unit: Unit
    peak: float
    floor: float
    warmup_init: float
    warmup: float
    """Positions of warm-up; may be fractional when given as a share of the decay."""
    length: int
    """Position from which the learning rate is `floor`; counted from 0, warm-up included."""
    style: DecayStyle
    wsd_style: WSDStyle
    wsd_length: int
    """Positions of the last phase of WSD."""
    one_step: int
    """Positions in one step: the shortest warm-up that inverse-square-root is scaled by."""

    def at(self, applied: Applied) -> float:
        """Learning rate of the next update."""
        return self.value(applied.position(self.unit))

    def value(self, position: int) -> float:
        """Learning rate at a position counted in `unit`."""
        if self.warmup > 0 and position <= self.warmup:
            return self.warmup_init + (self.peak - self.warmup_init) * position / self.warmup
        if self.style == "constant":
            return self.peak
        # Also what makes length == warmup safe: every position left over is past the end.
        if position > self.length or self.length <= self.warmup:
            return self.floor
        if self.style == "inverse-square-root":
            scale = math.sqrt(max(self.warmup, self.one_step) / max(position, self.one_step))
            return max(self.floor, self.peak * scale)
        return self.floor + (self.peak - self.floor) * self._height(position)

    def _height(self, position: int) -> float:
        """Share of peak - floor that is left at a position between warm-up and length."""
        if self.style == "WSD":
            start = self.length - self.wsd_length
            return 1.0 if position <= start else _wsd_height(self.wsd_style, (position - start) / self.wsd_length)
        progress = (position - self.warmup) / (self.length - self.warmup)
        return 1.0 - progress if self.style == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))


def _wsd_height(style: WSDStyle, progress: float) -> float:
    """Height of WSD's last phase, from 1 at progress 0 to 0 at progress 1."""
    if style == "linear":
        return 1.0 - progress
    if style == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if style == "minus_sqrt":
        return 1.0 - math.sqrt(progress)
    return 2.0 * 0.5**progress - 1.0


def lr_schedule(optim: OptimConfig, training: TrainingConfig) -> LRSchedule:
    """The schedule that a resolved, validated configuration asks for.

    With inverse-square-root and no warm-up, Megatron-LM scales by the root of one *sample*, which divides lr by
    sqrt(batch) after the first step; here the smallest scale is one *step*.
    """
    unit = schedule_unit(training)
    if unit == "samples":
        length = training.train_samples if optim.lr_decay_samples is None else optim.lr_decay_samples
        warmup, wsd_length = optim.lr_warmup_samples, optim.lr_wsd_decay_samples
    else:
        length = training.train_iters if optim.lr_decay_iters is None else optim.lr_decay_iters
        warmup, wsd_length = optim.lr_warmup_iters, optim.lr_wsd_decay_iters
    assert length is not None, "a validated run has train_iters or train_samples"
    assert optim.lr_decay_style != "WSD" or wsd_length is not None, "validation asks for the length of WSD's last phase"
    return LRSchedule(
        unit=unit,
        peak=optim.lr,
        floor=optim.min_lr,
        warmup_init=optim.lr_warmup_init,
        warmup=warmup if optim.lr_warmup_fraction is None else optim.lr_warmup_fraction * length,
        length=length,
        style=optim.lr_decay_style,
        wsd_style=optim.lr_wsd_decay_style,
        wsd_length=wsd_length or 0,
        one_step=1 if unit == "steps" else training.global_batch_size or 1,
    )
