# SPDX-License-Identifier: Apache-2.0
"""One training step: pipeline, gradient reduction, one collective of sums, update.

The loss is the mean over all unmasked target tokens of the global batch. Their number is not known when the first
backward starts, so each backward starts from its sum over nominal = batch x sequence length; nominal / true then joins
the factor that the optimizer applies. All decisions (skip, clip, stop) follow from the sums and are thus the same on
every rank.
"""

import math
from dataclasses import dataclass, replace

import torch

from megatron_core.data_parallel.grad_reducer import counted_grads, counted_weights
from megatron_core.optim.grad_clip import clip_factor, sum_of_squares
from megatron_core.optim.loss_scaler import after_step
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.runtime import PipelineResult
from megatron_core.training.build import Run, padding_elements
from megatron_core.training.run_data import training_plans
from megatron_core.training.state import RunState


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What one step did; the same on every rank."""

    loss: float
    grad_norm: float
    lr: float
    loss_scale: float
    batch_size: int
    skipped: bool
    params_norm: float | None
    num_zeros: int | None
    stop: bool
    """Whether any rank asked to stop."""


def train_step(run: Run, state: RunState, *, stop: bool) -> tuple[RunState, StepOutcome]:
    """Take step number `state.step + 1`; `stop`: this rank asks the run to end after it."""
    config = run.config
    batch_size = run.batch_schedule.size_at(state.consumed_samples)
    plan = next(training_plans(config, run.ctx, run.batch_schedule, state.consumed_samples))
    nominal = batch_size * config.model.seq_length
    scale = state.loss_scale.scale
    with run.timers("batch"):
        microbatches = run.source.step(plan, (config.training.seed, state.step))
    with run.timers("forward-backward"):
        run.reducer.begin_step(len(plan))
        result = run.runtime.run(run.programs.training(len(plan)), microbatches, loss_weight=scale / nominal)
    with run.timers("gradient-reduction"):
        run.reducer.finish()
        sums = _global_sums(run, result, stop)
    finite = math.isfinite(sums.squares)
    per_token = nominal / sums.tokens / scale if sums.tokens else 0.0
    norm = math.sqrt(sums.squares) * per_token if finite else sums.squares
    lr = run.lr_schedule.at(state.applied)
    skipped = config.optim.precision == "fp16" and not finite
    if not skipped:
        _refuse_non_finite(run, state, norm, sums)
        with run.timers("optimizer"):
            run.optimizer.step(
                applied_steps=state.applied.steps,
                lr=lr,
                weight_decay=run.weight_decay_schedule.at(state.applied),
                grad_factor=per_token * clip_factor(norm, config.optim.clip_grad),
            )
    outcome = StepOutcome(
        loss=sums.loss / sums.tokens if sums.tokens else math.nan,
        grad_norm=norm,
        lr=lr,
        loss_scale=scale,
        batch_size=batch_size,
        skipped=skipped,
        params_norm=_params_norm(run) if config.logging.log_params_norm else None,
        num_zeros=sums.zeros if config.logging.log_num_zeros_in_grad else None,
        stop=sums.stop,
    )
    return replace(
        state,
        step=state.step + 1,
        applied=state.applied if skipped else state.applied.plus(batch_size),
        consumed_samples=state.consumed_samples + batch_size,
        loss_scale=after_step(state.loss_scale, skipped, config.optim),
    ), outcome


@dataclass(frozen=True)
class _Sums:
    squares: float
    loss: float
    tokens: int
    zeros: int
    stop: bool


def _global_sums(run: Run, result: PipelineResult, stop: bool) -> _Sums:
    """Everything that a step must know of all ranks, in one all-reduce; each logical element is counted once."""
    ctx = run.ctx
    squares, zeros = 0.0, 0
    if ctx.dp.coordinate == 0:  # reduced gradients are equal on all dp ranks
        grads = counted_grads(run.reducer.buckets)
        squares = sum_of_squares(grads)
        if run.config.logging.log_num_zeros_in_grad:
            zeros = sum(int((grad == 0).sum()) for grad in grads) - _padding(run)
    loss, tokens = (float(result.loss_sum), float(result.token_count)) if counts_loss(ctx) else (0.0, 0.0)
    vector = torch.tensor([squares, loss, tokens, zeros, float(stop)], dtype=torch.float64, device=ctx.device)
    squares, loss, tokens, zeros, stops = all_reduce(vector, ctx.world).tolist()
    return _Sums(squares, loss, int(tokens), int(zeros), stops > 0)


def _padding(run: Run) -> int:
    return padding_elements(run.reducer.parameters)


def counts_loss(ctx: ParallelContext) -> bool:
    """Whether this rank is the one of its tp group that reports the loss, which all of them know."""
    return ctx.tp.coordinate == 0 and ctx.is_last_stage


def _params_norm(run: Run) -> float:
    """L2 norm of all weights, each counted once."""
    squares = sum_of_squares(counted_weights(run.reducer.buckets)) if run.ctx.dp.coordinate == 0 else 0.0
    total = torch.tensor([squares], dtype=torch.float64, device=run.ctx.device)
    return math.sqrt(float(all_reduce(total, run.ctx.world)))


class NonFiniteError(RuntimeError):
    """The loss or the gradient norm is no longer a number: the weights were left as they are."""


def _refuse_non_finite(run: Run, state: RunState, norm: float, sums: _Sums) -> None:
    if not run.config.training.check_for_nan_in_loss_and_grad or (math.isfinite(norm) and math.isfinite(sums.loss)):
        return
    first = state.consumed_samples
    last = first + run.batch_schedule.size_at(first) - 1
    raise NonFiniteError(
        f"step {state.step + 1}: loss sum {sums.loss}, gradient norm {norm}. The batch was samples {first} to {last}; "
        "no update was made. --no-check-for-nan-in-loss-and-grad goes on regardless."
    )
