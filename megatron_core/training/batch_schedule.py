# SPDX-License-Identifier: Apache-2.0
"""The global batch size as a function of the samples consumed, and what follows: how many steps, how many samples.

`--rampup-batch-size START INCREMENT SAMPLES` grows the batch from START to --global-batch-size in equal increments,
each held for an equal share of SAMPLES (Megatron-LM's rule; GPT-3, arXiv:2005.14165, appendix B, grew its batch too).
Counts are integers throughout, and walking a ramp costs one iteration a stage, not one a step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from megatron_core.config.training import TrainingConfig
from megatron_core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BatchSchedule:
    """batch(consumed samples): `start`, then `increment` more for each share of `ramp_samples`, up to `final`."""

    final: int
    start: int
    increment: int = 0
    ramp_samples: int = 0

    @property
    def num_increments(self) -> int:
        """How often the batch grows."""
        return (self.final - self.start) // self.increment if self.increment else 0

    def sizes(self) -> tuple[int, ...]:
        """Every batch size that the ramp knows, in order."""
        return (*(self.start + self.increment * i for i in range(self.num_increments)), self.final)

    def size_at(self, consumed_samples: int) -> int:
        """Batch size of the step that starts when `consumed_samples` were read."""
        if consumed_samples >= self.ramp_samples:
            return self.final
        return self.start + self.increment * (consumed_samples * self.num_increments // self.ramp_samples)

    def samples_after(self, steps: int, consumed_samples: int = 0) -> int:
        """Samples consumed once `steps` more steps were taken from `consumed_samples` on."""
        for size, count in self._stages(consumed_samples):
            taken = steps if count is None else min(count, steps)
            consumed_samples, steps = consumed_samples + taken * size, steps - taken
            if steps == 0:
                break
        return consumed_samples

    def steps_within(self, samples: int, consumed_samples: int = 0) -> int:
        """Whole steps that fit between `consumed_samples` and `samples`; a last partial batch is not taken."""
        steps = 0
        for size, count in self._stages(consumed_samples):
            fitting = max(samples - consumed_samples, 0) // size
            taken = fitting if count is None else min(count, fitting)
            consumed_samples, steps = consumed_samples + taken * size, steps + taken
            if taken == fitting:
                break
        return steps

    def _stages(self, consumed: int) -> Iterator[tuple[int, int | None]]:
        """(batch size, steps until it changes) from `consumed` on; the last has no end (None)."""
        while consumed < self.ramp_samples:
            stage = consumed * self.num_increments // self.ramp_samples
            end = -(-(stage + 1) * self.ramp_samples // self.num_increments)
            size = self.start + self.increment * stage
            count = -(-(end - consumed) // size)
            yield size, count
            consumed += count * size
        yield self.final, None


def batch_schedule(training: TrainingConfig) -> BatchSchedule:
    """The schedule that a resolved configuration asks for."""
    final = training.global_batch_size
    assert final is not None, "a resolved run has global_batch_size"
    if training.rampup_batch_size is None or training.rampup_batch_size[0] == final:
        return BatchSchedule(final=final, start=final)
    start, increment, samples = training.rampup_batch_size
    return BatchSchedule(final=final, start=start, increment=increment, ramp_samples=samples)


def check_batch_schedule(schedule: BatchSchedule, micro_batch_size: int, dp: int) -> None:
    """Refuse a ramp that misses the final size, or that has a size which dp ranks cannot share in whole microbatches.

    Raises ConfigError with the offending numbers.
    """
    final, start, increment = schedule.final, schedule.start, schedule.increment
    if final != start and (start < 1 or increment < 1 or start > final or (final - start) % increment):
        raise ConfigError(
            f"--rampup-batch-size {start} {increment} {schedule.ramp_samples} does not lead to --global-batch-size "
            f"{final}: take a start in 1..{final} and an increment that divides {final} - {start} = {final - start}."
        )
    share = micro_batch_size * dp
    uneven = [size for size in schedule.sizes() if size % share]
    if uneven:
        raise ConfigError(
            f"batch sizes {', '.join(map(str, uneven[:5]))}{' ...' if len(uneven) > 5 else ''} are not multiples of "
            f"micro-batch-size {micro_batch_size} x data-parallel size {dp} = {share}: change --global-batch-size, "
            f"--rampup-batch-size or --micro-batch-size."
        )


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
