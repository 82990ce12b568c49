# SPDX-License-Identifier: Apache-2.0
"""RunState: the scalars that, with weights and moments, are the whole state of a run."""

from dataclasses import dataclass, field

from megatron_core.optim.loss_scaler import LossScale
from megatron_core.optim.lr_schedule import Applied
from megatron_core.training.faults import RecentLoss


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands between two steps."""

    loss_scale: LossScale
    step: int = 0
    """Steps taken, skipped ones included."""
    applied: Applied = field(default_factory=Applied)
    """Updates applied: what schedules and Adam's bias correction count."""
    consumed_samples: int = 0
    """Training samples read, those of skipped steps included."""
    recent_loss: RecentLoss = field(default_factory=RecentLoss)
    """What a loss spike is measured against."""
    elapsed_s: float = 0.0
    """Seconds of training up to here, over all starts of the run."""
    skipped_steps: tuple[int, ...] = ()
    """Steps that were rolled back as faulty and are to be passed over, in order."""
