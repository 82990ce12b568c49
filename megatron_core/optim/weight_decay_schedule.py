# SPDX-License-Identifier: Apache-2.0
"""Weight decay as a function of what has been applied: constant, or rising over the whole run.

Positions and the rule for the first update are those of `lr_schedule`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from megatron_core.config.optim import OptimConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.optim.lr_schedule import Applied, Unit, schedule_unit


@dataclass(frozen=True, kw_only=True)
class WeightDecaySchedule:
    """decay(position): from `start` at 0 to `end` at `length` and after."""

    unit: Unit
    start: float
    end: float
    length: int
    style: Literal["constant", "linear", "cosine"]

    def at(self, applied: Applied) -> float:
        """Weight decay of the next update."""
        return self.value(applied.position(self.unit))

    def value(self, position: int) -> float:
        """Weight decay at a position counted in `unit`."""
        if self.style == "constant" or position >= self.length:
            return self.end
        progress = position / self.length
        if self.style == "cosine":
            progress = 0.5 * (1.0 + math.cos(math.pi * (1.0 - progress)))
        return self.start + progress * (self.end - self.start)


def weight_decay_schedule(optim: OptimConfig, training: TrainingConfig) -> WeightDecaySchedule:
    """The ramp that a resolved, validated configuration asks for; unset ends are --weight-decay."""
    unit = schedule_unit(training)
    length = training.train_samples if unit == "samples" else training.train_iters
    assert length is not None, "a validated run has train_iters or train_samples"
    constant = optim.weight_decay_incr_style == "constant"
    start, end = optim.start_weight_decay, optim.end_weight_decay
    return WeightDecaySchedule(
        unit=unit,
        start=optim.weight_decay if constant or start is None else start,
        end=optim.weight_decay if constant or end is None else end,
        length=length,
        style=optim.weight_decay_incr_style,
    )
