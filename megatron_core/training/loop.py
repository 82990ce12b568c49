# SPDX-License-Identifier: Apache-2.0
"""The loop: step, report, validate when due, stop when asked."""

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from megatron_core.data.sample import ValidationData
from megatron_core.parallel.collectives import MAX, all_reduce
from megatron_core.planner.device_peaks import peak_tflops
from megatron_core.planner.flops import flops_per_token
from megatron_core.training.build import Run
from megatron_core.training.device_memory import peak_memory_bytes
from megatron_core.training.metrics import StepMetrics
from megatron_core.training.profile import ProfileWindow
from megatron_core.training.report import Report
from megatron_core.training.state import RunState
from megatron_core.training.throughput import Yardstick
from megatron_core.training.train_step import StepOutcome, train_step
from megatron_core.training.validation import validate


@dataclass(frozen=True)
class Ending:
    """Where and why the loop ended."""

    state: RunState
    reason: str
    validated: bool
    """Whether the last step was followed by a validation."""


def train(run: Run, state: RunState, report: Report, profile: ProfileWindow, started: float) -> Ending:
    """Train from `state` to the end of the run or until a limit. `started`: time.monotonic() at the process's start."""
    training = run.config.training
    yardstick = _yardstick(run)
    if training.manual_gc:
        gc.disable()
        gc.collect()
    reason = "finished"
    validated_at = -1
    while state.step < run.length.steps:
        profile.before_step(state.step + 1)
        begin = time.perf_counter()
        limit = training.exit_duration_in_mins
        out_of_time = limit is not None and time.monotonic() - started >= 60 * limit
        state, outcome = train_step(run, state, stop=out_of_time)
        report.step(_metrics(run, state, outcome, yardstick, time.perf_counter() - begin))
        profile.after_step(state.step)
        if training.eval_interval and state.step % training.eval_interval == 0:
            validated_at = state.step
            _validate(run, state, report, run.data.datasets.validation)
        if training.manual_gc and training.manual_gc_interval and state.step % training.manual_gc_interval == 0:
            gc.collect()
        if outcome.stop:
            reason = f"exit_duration_in_mins {limit}"
            break
        if training.exit_interval and state.step % training.exit_interval == 0:
            reason = f"exit_interval {training.exit_interval}"
            break
    return Ending(state, reason, validated_at == state.step)


def validate_at_end(run: Run, ending: Ending, report: Report) -> None:
    """The last validation, where the last step did not have one, and the test set."""
    datasets = run.data.datasets
    if not ending.validated:
        _validate(run, ending.state, report, datasets.validation)
    if datasets.test is not None:
        _validate(run, ending.state, report, {"test": datasets.test})


def _validate(run: Run, state: RunState, report: Report, sets: Mapping[str, ValidationData]) -> None:
    for metrics in validate(run, state, sets):
        report.validation(metrics)


def _yardstick(run: Run) -> Yardstick:
    peak = run.config.logging.device_peak_tflops
    if peak is None and run.ctx.device.type == "cuda":
        peak = peak_tflops(torch.cuda.get_device_name(run.ctx.device), run.config.optim.precision)
    return Yardstick(
        seq_length=run.config.model.seq_length,
        flops_per_token=flops_per_token(run.config.model),
        num_devices=run.ctx.grid.world_size,
        peak_tflops=peak,
    )


def _metrics(run: Run, state: RunState, outcome: StepOutcome, yardstick: Yardstick, seconds: float) -> StepMetrics:
    """What the step was; time, memory and phases are the largest of any rank."""
    phases = run.timers.take()
    own = torch.tensor(
        [seconds, peak_memory_bytes(run.ctx.device), *phases.values()], dtype=torch.float64, device=run.ctx.device
    )
    slowest, memory, *phase_seconds = all_reduce(own, run.ctx.world, MAX).tolist()
    rates = yardstick.rates(outcome.batch_size, slowest)
    return StepMetrics(
        step=state.step,
        loss=outcome.loss,
        grad_norm=outcome.grad_norm,
        lr=outcome.lr,
        loss_scale=outcome.loss_scale,
        batch_size=outcome.batch_size,
        consumed_samples=state.consumed_samples,
        consumed_tokens=state.consumed_samples * run.config.model.seq_length,
        step_time_s=slowest,
        tokens_per_s=rates.tokens_per_s,
        tflops_per_device=rates.tflops_per_device,
        mfu=rates.mfu,
        peak_memory_bytes=int(memory),
        skipped=outcome.skipped,
        params_norm=outcome.params_norm,
        num_zeros=outcome.num_zeros,
        timers=dict(zip(phases, phase_seconds)),
    )
