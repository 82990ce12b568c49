# SPDX-License-Identifier: Apache-2.0
"""What a step was, put together on every rank: the outcome, and the largest of all ranks' times and memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from megatron_core.parallel.collectives import MAX, all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.planner.device_peaks import peak_tflops
from megatron_core.planner.flops import flops_per_token
from megatron_core.training.build import Run
from megatron_core.training.device_memory import peak_memory_bytes
from megatron_core.training.live_bytes import counted
from megatron_core.training.metrics import StepMetrics
from megatron_core.training.state import RunState
from megatron_core.training.stragglers import BusyWindow, Stragglers
from megatron_core.training.throughput import Yardstick
from megatron_core.training.train_step import StepOutcome

AXES = ("tp", "kv", "dp", "pp", "tied", "world")
"""The groups that a rank may be in: what it measures of each travels as one vector, of equal length on all ranks."""


class StepMeter:
    """Measures the steps of one run."""

    def __init__(self, run: Run) -> None:
        peak = run.config.logging.device_peak_tflops
        if peak is None and run.ctx.device.type == "cuda":
            peak = peak_tflops(torch.cuda.get_device_name(run.ctx.device), run.config.optim.precision)
        self._yardstick = Yardstick(
            seq_length=run.config.model.seq_length,
            flops_per_token=flops_per_token(run.config.model),
            num_devices=run.ctx.grid.world_size,
            peak_tflops=peak,
        )
        logging = run.config.logging
        self._window = BusyWindow(run.ctx) if logging.log_straggler else None
        self._window_steps = logging.log_interval
        self._count_steps = logging.log_memory_interval
        self._blocked: Mapping[str, float] = {}
        self._memory: Mapping[str, int] = {}

    @contextmanager
    def watch(self, run: Run, step: int) -> Iterator[None]:
        """Around step number `step`: what `metrics` tells beside its outcome and its time."""
        before = run.ctx.log.blocked_s()
        if self._count_steps is not None and step % self._count_steps == 0:
            with counted(run) as live:
                yield
            self._memory = live.peaks()
        else:
            yield
            self._memory = {}
        after = run.ctx.log.blocked_s()
        self._blocked = {axis: after.get(axis, 0.0) - before.get(axis, 0.0) for axis in AXES}

    def metrics(self, run: Run, state: RunState, outcome: StepOutcome, seconds: float) -> StepMetrics:
        """The facts of the step that led to `state` and took `seconds` here. All ranks must call."""
        whole = {"seconds": seconds, "memory": float(peak_memory_bytes(run.ctx.device))}
        whole, timers, blocked, by_category = _largest([whole, run.timers.take(), self._blocked, self._memory], run.ctx)
        rates = self._yardstick.rates(outcome.batch_size, whole["seconds"])
        return StepMetrics(
            step=state.step,
            loss=outcome.loss,
            grad_norm=outcome.grad_norm,
            lr=outcome.lr,
            loss_scale=outcome.loss_scale,
            batch_size=outcome.batch_size,
            consumed_samples=state.consumed_samples,
            consumed_tokens=state.consumed_samples * run.config.model.seq_length,
            step_time_s=whole["seconds"],
            tokens_per_s=rates.tokens_per_s,
            tflops_per_device=rates.tflops_per_device,
            mfu=rates.mfu,
            peak_memory_bytes=int(whole["memory"]),
            skipped=outcome.skipped,
            params_norm=outcome.params_norm,
            num_zeros=outcome.num_zeros,
            exposed_comm_s=_exposed(blocked, run.ctx),
            timers=timers,
            memory_bytes={category: int(nbytes) for category, nbytes in by_category.items()},
            stragglers=self._stragglers(state.step),
        )

    def _stragglers(self, step: int) -> Stragglers | None:
        if self._window is None or step % self._window_steps:
            return None
        return self._window.close()


def _largest(measured: list[Mapping[str, float]], ctx: ParallelContext) -> list[dict[str, float]]:
    """Each number as the largest of all ranks, which give the same names, in one collective."""
    own = torch.tensor([x for numbers in measured for x in numbers.values()], dtype=torch.float64, device=ctx.device)
    largest = iter(all_reduce(own, ctx.world, MAX).tolist())
    return [{name: next(largest) for name in numbers} for numbers in measured]


def _exposed(blocked: Mapping[str, float], ctx: ParallelContext) -> dict[str, float] | None:
    """What metrics.jsonl says of it. On CUDA the host's waits are no communication, and nothing is known here."""
    if ctx.device.type == "cuda":
        return None
    return {axis: seconds for axis, seconds in blocked.items() if seconds > 0}
