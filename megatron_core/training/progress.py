# SPDX-License-Identifier: Apache-2.0
"""The console's line for a step, and when the run will be over.

The line shows the step's own facts, the same as metrics.jsonl. The ETA divides the samples that remain by the speed of
the last few steps, so that it is right while the batch ramps up; the first step of a process, which compiles and
allocates, is left out as soon as there is another.
"""

import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from megatron_core.config.logging import LoggingConfig
from megatron_core.training.batch_schedule import RunLength
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.metrics import EvaluationMetrics, StepMetrics, ValidationMetrics

if TYPE_CHECKING:
    from megatron_core.training.stragglers import Stragglers  # with torch, which tools that only show need not load

LOGGER = logging.getLogger(LOGGER_NAME)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03 or 2d 03:04:05."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days}d {h:02}:{m:02}:{s:02}" if days else f"{h}:{m:02}:{s:02}"


def quantity(value: float, unit: str) -> str:
    """Three digits and a decimal prefix, such as 41.2 ktok/s."""
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    factor, prefix = next((pair for pair in prefixes if value >= pair[0]), (1.0, ""))
    scaled = value / factor
    decimals = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
    return f"{scaled:.{decimals}f} {prefix}{unit}"


def step_line(metrics: StepMetrics, total_steps: int, eta_s: float, *, throughput: bool = False) -> str:
    """One step for people. `throughput` adds TFLOP/s per device."""
    parts = [
        f"step {metrics.step}/{total_steps}",
        f"loss {metrics.loss:.4f}",
        f"grad {metrics.grad_norm:.3g}",
        f"lr {metrics.lr:.2e}",
        f"scale {metrics.loss_scale:g}" if metrics.loss_scale != 1 else "",
        "skipped" if metrics.skipped else "",
        f"params {metrics.params_norm:.5g}" if metrics.params_norm is not None else "",
        f"zeros {metrics.num_zeros}" if metrics.num_zeros is not None else "",
        f"batch {metrics.batch_size}",
        f"{metrics.step_time_s:.3g} s",
        quantity(metrics.tokens_per_s, "tok/s"),
        quantity(metrics.tflops_per_device * 1e12, "FLOP/s") if throughput else "",
        f"mfu {metrics.mfu:.2f}" if metrics.mfu is not None else "",
        f"mem {quantity(metrics.peak_memory_bytes, 'B')}",
        straggler_text(metrics.stragglers) if metrics.stragglers is not None else "",
        f"eta {clock(eta_s)}",
    ]
    return " | ".join(part for part in parts if part)


def straggler_text(found: "Stragglers") -> str:
    """Who held up the others in a logging window."""
    return (
        f"slowest rank {found.slowest_rank} busy {found.slowest_rank_s:.3g} s, "
        f"fastest {found.fastest_rank} {found.fastest_rank_s:.3g} s"
    )


def timer_line(timers: Mapping[str, float]) -> str:
    """Phases of a step in milliseconds, longest first."""
    longest_first = sorted(timers.items(), key=lambda item: -item[1])
    return "  " + " | ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in longest_first)


def memory_line(memory_bytes: Mapping[str, int]) -> str:
    """Live bytes by category."""
    return "  live " + " | ".join(f"{category} {quantity(nbytes, 'B')}" for category, nbytes in memory_bytes.items())


def validation_line(metrics: ValidationMetrics) -> str:
    """One validation pass for people."""
    return (
        f"validation at step {metrics.step} | {metrics.validation_set} | loss {metrics.validation_loss:.4f} | "
        f"ppl {metrics.perplexity:.4g} | {metrics.validation_tokens} tokens"
    )


def score_text(value: float) -> str:
    """A score; the perplexity of an untrained model is no number to be written out."""
    return f"{value:.4f}" if value < 1e6 else f"{value:.4g}"


def evaluation_line(metrics: EvaluationMetrics) -> str:
    """The scores of a task for people."""
    scores = " | ".join(
        f"{name} {score_text(value)} +- {metrics.standard_errors[name]:.2g}" for name, value in metrics.scores.items()
    )
    return (
        f"evaluation at step {metrics.step} | {metrics.evaluation} | {scores} | "
        f"{metrics.evaluation_questions} questions"
    )


class Progress:
    """Logs every `log_interval`-th step, and the first and last of this process. Of use on rank 0 alone."""

    def __init__(self, config: LoggingConfig, length: RunLength, window: int = 20) -> None:
        self._config = config
        self._length = length
        self._recent: deque[tuple[int, float]] = deque(maxlen=window)
        self._first_step: int | None = None

    def step(self, metrics: StepMetrics) -> None:
        """Take in a step; log it when it is due."""
        if self._first_step is None:
            self._first_step = metrics.step
        elif metrics.step == self._first_step + 1:
            self._recent.clear()
        self._recent.append((metrics.batch_size, metrics.step_time_s))
        due = metrics.step % self._config.log_interval == 0
        if due or metrics.step in (self._first_step, self._length.steps):
            eta = self.eta_s(metrics.consumed_samples)
            LOGGER.info(step_line(metrics, self._length.steps, eta, throughput=self._config.log_throughput))
            if metrics.timers:
                LOGGER.info(timer_line(metrics.timers))
        if metrics.memory_bytes:
            LOGGER.info(memory_line(metrics.memory_bytes))

    def eta_s(self, consumed_samples: int) -> float:
        """Seconds that the remaining samples take at the speed of the recent steps."""
        samples = sum(batch for batch, _ in self._recent)
        seconds = sum(time for _, time in self._recent)
        return self._length.remaining_samples(consumed_samples) * seconds / samples if samples else 0.0
