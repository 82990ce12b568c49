# SPDX-License-Identifier: Apache-2.0
"""Steps that went wrong: what is a fault, and what is done about it.

A loss or gradient norm that is no number, and a loss far above the recent ones, are faults. All that is judged here
comes out of one all-reduce, so every rank decides alike. An fp16 gradient that overflows under a finite loss is none:
that is how the loss scaler finds its scale.
"""

import math
from dataclasses import dataclass, replace

_NEWEST_WEIGHT = 0.05
_LEAST_SEEN = 10


@dataclass(frozen=True)
class RecentLoss:
    """The usual loss of late, which a spike is measured against: plain numbers, saved with the run's state."""

    mean: float = 0.0
    """Mean of the applied steps' losses: of all of them for the first 20, then each new one weighs 1/20."""
    count: int = 0
    """Losses in the mean."""
    faults: int = 0
    """Faulty steps passed over since the last applied one."""

    def plus(self, loss: float) -> "RecentLoss":
        """After an applied step. A loss that is no number (let through, or a batch without targets) leaves the mean."""
        if not math.isfinite(loss):
            return replace(self, faults=0)
        weight = max(1 / (self.count + 1), _NEWEST_WEIGHT)
        return RecentLoss(self.mean + weight * (loss - self.mean), self.count + 1)

    def plus_fault(self) -> "RecentLoss":
        """After a faulty step that was passed over: its loss says nothing of what is usual."""
        return replace(self, faults=self.faults + 1)

    def is_spike(self, loss: float, factor: float) -> bool:
        """Whether `loss` exceeds `factor` times the mean; never before 10 losses were seen."""
        return self.count >= _LEAST_SEEN and loss > factor * self.mean
