# SPDX-License-Identifier: Apache-2.0
"""The global batch size as a function of the samples consumed, and what follows: how many steps, how many samples.

A schedule is a list of stages, each with the first sample from which its size holds. `--rampup-batch-size START
INCREMENT SAMPLES` gives stages of equal shares of SAMPLES (Megatron-LM's rule; GPT-3, arXiv:2005.14165, appendix B,
grew its batch too), `--step-batch-size-schedule` gives them outright. Walking one costs an iteration a stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from megatron_core.config.batch_steps import parse_batch_steps
from megatron_core.config.training import TrainingConfig


@dataclass(frozen=True)
class Stage:
    """From sample `first` on, steps have `size` samples."""

    first: int
    size: int


@dataclass(frozen=True)
class BatchSchedule:
    """batch(consumed samples): the size of the last stage that has begun. The first begins at 0."""

    stages: tuple[Stage, ...]

    @property
    def largest(self) -> int:
        """The largest batch of the run."""
        return max(stage.size for stage in self.stages)

    def size_at(self, consumed_samples: int) -> int:
        """Batch size of the step that starts when `consumed_samples` were read."""
        return next(stage.size for stage in reversed(self.stages) if stage.first <= consumed_samples)

    def samples_after(self, steps: int, consumed_samples: int = 0) -> int:
        """Samples consumed once `steps` more steps were taken from `consumed_samples` on."""
        for size, count in self._runs(consumed_samples):
            taken = steps if count is None else min(count, steps)
            consumed_samples, steps = consumed_samples + taken * size, steps - taken
            if steps == 0:
                break
        return consumed_samples

    def steps_within(self, samples: int, consumed_samples: int = 0) -> int:
        """Whole steps that fit between `consumed_samples` and `samples`; a last partial batch is not taken."""
        steps = 0
        for size, count in self._runs(consumed_samples):
            fitting = max(samples - consumed_samples, 0) // size
            taken = fitting if count is None else min(count, fitting)
            consumed_samples, steps = consumed_samples + taken * size, steps + taken
            if taken == fitting:
                break
        return steps

    def _runs(self, consumed: int) -> Iterator[tuple[int, int | None]]:
        """(batch size, steps until it changes) from `consumed` on; the last has no end (None)."""
        for stage, following in zip(self.stages, self.stages[1:]):
            if consumed < following.first:
                count = -(-(following.first - consumed) // stage.size)
                yield stage.size, count
                consumed += count * stage.size
        yield self.stages[-1].size, None


def ramp_up(start: int, increment: int, samples: int, final: int) -> BatchSchedule:
    """From `start` to `final` in increments, each size held for an equal share of `samples`."""
    increments = (final - start) // increment if increment else 0
    if not increments or not samples:
        return BatchSchedule((Stage(0, final),))
    # Size number i holds where floor(consumed * increments / samples) = i.
    stages = [Stage(-(-i * samples // increments), start + i * increment) for i in range(increments)]
    return BatchSchedule((*stages, Stage(samples, final)))


def batch_schedule(training: TrainingConfig, seq_length: int) -> BatchSchedule:
    """The schedule that a resolved, validated configuration asks for."""
    if training.step_batch_size_schedule is not None:
        steps = parse_batch_steps(training.step_batch_size_schedule)
        return BatchSchedule(tuple(Stage(-(-tokens // seq_length), size) for tokens, size in steps))
    assert training.global_batch_size is not None, "a resolved run has global_batch_size"
    if training.rampup_batch_size is None:
        return BatchSchedule((Stage(0, training.global_batch_size),))
    return ramp_up(*training.rampup_batch_size, training.global_batch_size)


@dataclass(frozen=True)
class RunLength:
    """Where the run ends, in steps and in samples."""

    steps: int
    samples: int

    def remaining_samples(self, consumed_samples: int) -> int:
        """Samples still to be read, which is what an ETA divides by the recent speed."""
        return max(self.samples - consumed_samples, 0)


def run_length(training: TrainingConfig, schedule: BatchSchedule) -> RunLength:
    """Steps and samples of the whole run, whichever of the two it was given in."""
    if training.train_samples is not None:
        steps = schedule.steps_within(training.train_samples)
    else:
        assert training.train_iters is not None, "a validated run has train_iters or train_samples"
        steps = training.train_iters
    return RunLength(steps=steps, samples=schedule.samples_after(steps))
