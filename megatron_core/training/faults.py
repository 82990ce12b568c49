# SPDX-License-Identifier: Apache-2.0
"""Steps that went wrong: what is a fault, and what is done about it.

A loss or gradient norm that is no number, and a loss far above the recent ones, are faults. All that is judged here
comes out of one all-reduce, so every rank decides alike. An fp16 gradient that overflows under a finite loss is none:
that is how the loss scaler finds its scale.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from megatron_core.config.training import TrainingConfig

_NEWEST_WEIGHT = 0.05
_LEAST_SEEN = 10  # losses before anything is a spike: the first steps of a run say little
_MOST_FAULTS = 10  # faulty steps that may be passed over in a row
_NAN_REMEDY = (
    "--nan-policy skip or rollback leaves such batches out, --no-check-for-nan-in-loss-and-grad goes on regardless."
)
_SPIKE_REMEDY = "--loss-spike-policy skip or rollback leaves such batches out, ignore goes on regardless."


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


class FaultError(RuntimeError):
    """The run cannot go on as it is. All ranks raise it alike, so one of them says it, and it exits with this code."""

    exit_code = 1


Action = Literal["apply", "overflow", "skip", "rollback", "stop"]
"""What becomes of a step whose gradients are there.

apply: update the weights.
overflow: no update and a lower loss scale (fp16).
skip: no update; the samples count as read, the step as taken, and schedules, loss scale and mean stay where they are.
rollback: back to the newest checkpoint and from there to this step, which is then passed over without being computed;
    its samples count as read. With no checkpoint yet it is a stop.
stop: end the run with the weights as they are.
"""


@dataclass(frozen=True)
class Verdict:
    """What to do, and why where it is not the usual."""

    action: Action
    reason: str = ""
    """One line with step, numbers and the batch's samples; empty for apply and overflow."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of a step before its update; the same on every rank."""

    step: int
    first_sample: int
    batch_size: int
    loss: float
    """Mean over the batch's targets; 0 where it has none."""
    grad_norm: float


def judge(seen: Seen, recent: RecentLoss, config: TrainingConfig, *, fp16: bool) -> Verdict:
    """Decide on a step by the configured policies."""
    checked = config.check_for_nan_in_loss_and_grad
    nan_loss, nan_norm = not math.isfinite(seen.loss), not math.isfinite(seen.grad_norm)
    if fp16 and nan_norm and not (checked and nan_loss):
        return Verdict("overflow")
    if checked and (nan_loss or nan_norm):
        what = f"loss {seen.loss}, gradient norm {seen.grad_norm}"
        return _verdict(config.nan_policy, seen, recent, what, _NAN_REMEDY)
    if config.loss_spike_policy != "ignore" and recent.is_spike(seen.loss, config.loss_spike_factor):
        limit = config.loss_spike_factor * recent.mean
        what = f"loss {seen.loss:.4f} is above {limit:.4f}, {config.loss_spike_factor} times the recent mean"
        return _verdict(config.loss_spike_policy, seen, recent, what, _SPIKE_REMEDY)
    return Verdict("apply")


def _verdict(
    policy: Literal["stop", "skip", "rollback"], seen: Seen, recent: RecentLoss, what: str, remedy: str
) -> Verdict:
    last = seen.first_sample + seen.batch_size - 1
    where = f"step {seen.step}: {what}. The batch was samples {seen.first_sample} to {last}; no update was made."
    if policy == "stop":
        return Verdict("stop", f"{where} {remedy}")
    if recent.faults >= _MOST_FAULTS:
        # Batches do not go bad in rows: what is broken is the weights, and leaving out the rest of the data is no cure.
        return Verdict("stop", f"{where} It is fault {recent.faults + 1} in a row: load an older checkpoint.")
    return Verdict(policy, f"{where} The batch is left out{' after a roll-back' if policy == 'rollback' else ''}.")
