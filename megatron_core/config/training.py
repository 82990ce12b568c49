# SPDX-License-Identifier: Apache-2.0
"""How long and in which batches to train, when to validate, when to stop, and what to do about faults."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """The run itself."""

    micro_batch_size: int = 0
    """Samples b in one forward of one data-parallel rank (required)."""
    global_batch_size: int | None = None
    """Samples in one step. Unset: micro_batch_size x dp."""
    rampup_batch_size: tuple[int, int, int] | None = None
    """Start batch size, increment, and the samples over which it grows to global_batch_size."""
    step_batch_size_schedule: str | None = None
    """Batch size by tokens read, such as "0:768 250B:1536" (with --train-samples); the largest is the global batch."""
    train_iters: int | None = None
    """Steps to train (this or train_samples)."""
    train_samples: int | None = None
    """Samples to train."""
    eval_interval: int | None = None
    """Steps between validations. Unset: only at the end."""
    eval_iters: int = 100
    """Batches in one validation; 0: none. A smaller validation set is read once, whole."""
    full_validation: bool = False
    """Read each validation set whole, every time."""
    eval_tasks: tuple[str, ...] = ()
    """Tasks NAME=FILE to score after each validation, such as lambada=test.jsonl; names are those of
    tools/evaluate.py."""
    eval_tasks_limit: int | None = None
    """Ask only so many questions of each task, its first. Unset: all."""
    seed: int = 1234
    """Seed of weights, data order and dropout."""

    exit_interval: int | None = None
    """Stop after a step that this divides."""
    exit_duration_in_mins: float | None = None
    """Stop after the first step that begins later than this, counted from the start of the process."""
    exit_signal_handler: bool = False
    """At SIGTERM or SIGUSR1 to any rank finish the step, save and leave (exit code 75, under torchrun 0)."""
    kill_switch_path: str | None = None
    """Stop, with a checkpoint, after the step at which this file exists."""

    check_for_nan_in_loss_and_grad: bool = True
    """Do as nan_policy says at a loss or gradient norm that is not finite (fp16 overflows: those steps are skipped)."""
    nan_policy: Literal["stop", "skip", "rollback"] = "stop"
    """stop: end the run; skip: leave the batch out; rollback: load the last checkpoint and leave the batch out."""
    loss_spike_policy: Literal["ignore", "stop", "skip", "rollback"] = "ignore"
    """The same for a loss above loss_spike_factor times the mean of the recent ones."""
    loss_spike_factor: float = 1.5
    """Loss over the mean of recent losses from which on it is a spike; above 1."""
    iterations_to_skip: tuple[str, ...] = ()
    """Steps N or N-M (both included) to pass over: step and samples move on, weights and learning rate do not."""
    check_weight_hash_across_dp_replicas_interval: int | None = None
    """Steps between checks that data-parallel replicas hold equal weights."""

    manual_gc: bool = False
    """Collect Python garbage at fixed steps on all ranks at once instead of whenever it falls due."""
    manual_gc_interval: int = 0
    """Steps between collections with --manual-gc; 0: never."""

    profile: bool = False
    """Record a torch profiler trace of some steps."""
    profile_step_start: int = 10
    """First profiled step."""
    profile_step_end: int = 12
    """Step before which profiling ends."""
    profile_ranks: tuple[int, ...] = (0,)
    """Ranks that record."""
