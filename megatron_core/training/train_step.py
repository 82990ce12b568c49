# SPDX-License-Identifier: Apache-2.0
"""One training step: pipeline, gradient reduction, one collective of sums, a verdict, update.

The loss is the mean over all unmasked target tokens of the global batch. Their number is not known when the first
backward starts, so each backward starts from its sum over nominal = batch x sequence length; nominal / true then joins
the factor that the optimizer applies. All decisions (skip, clip, roll back, stop) follow from the sums and are
thus the same on every rank.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from megatron_core.config.run import RunConfig
from megatron_core.data_parallel.grad_reducer import counted_grads, counted_weights
from megatron_core.optim.delayed_update import DelayedAdamW
from megatron_core.optim.grad_clip import clip_factor, sum_of_squares
from megatron_core.optim.loss_scaler import after_step
from megatron_core.optim.onebit_adam import takes_local_gradients
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.runtime import PipelineResult
from megatron_core.training.build import Run, padding_elements
from megatron_core.training.faults import Seen, Verdict, judge
from megatron_core.training.run_data import training_plans
from megatron_core.training.state import RunState
from megatron_core.training.stop import NO_VOTES, Stop, decided


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What one step did; the same on every rank."""

    loss: float
    grad_norm: float
    lr: float
    loss_scale: float
    batch_size: int
    verdict: Verdict
    params_norm: float | None
    num_zeros: int | None
    stop: Stop | None
    """Why the run should end after this step, whichever rank asked."""

    @property
    def skipped(self) -> bool:
        """Whether the weights stayed as they were."""
        return self.verdict.action != "apply"


def train_step(run: Run, state: RunState, votes: Sequence[float] = NO_VOTES) -> tuple[RunState, StepOutcome]:
    """Take step number `state.step + 1`; `votes`: this rank's reasons to stop after it (`StopRequests.votes`).

    Where the verdict is to roll back or to stop, no step was taken: the state comes back as it was.
    """
    config = run.config
    batch_size = run.batch_schedule.size_at(state.consumed_samples)
    plan = next(training_plans(config, run.ctx, run.batch_schedule, state.consumed_samples))
    nominal = batch_size * config.model.seq_length
    scale = state.loss_scale.scale
    with run.timers("batch"):
        microbatches = run.source.step(plan, (config.training.seed, state.step))
    local = takes_local_gradients(run.optimizer, state.applied.steps)
    with run.timers("forward-backward"):
        run.reducer.begin_step(len(plan), over_dp=not local)
        result = run.runtime.run(run.programs.training(len(plan)), microbatches, loss_weight=scale / nominal)
    with run.timers("gradient-reduction"):
        run.reducer.finish()
        sums = _global_sums(run, result, votes, local=local)
    per_token = nominal / sums.tokens / scale if sums.tokens else 0.0
    norm = math.sqrt(sums.squares) * per_token if math.isfinite(sums.squares) else sums.squares
    lr = run.lr_schedule.at(state.applied)
    verdict = judge(
        Seen(
            step=state.step + 1,
            first_sample=state.consumed_samples,
            batch_size=batch_size,
            loss=sums.loss / max(sums.tokens, 1),
            grad_norm=norm,
        ),
        state.recent_loss,
        config.training,
        fp16=config.optim.precision == "fp16",
    )
    with run.timers("optimizer"):
        _update(run, state, verdict, lr, per_token * clip_factor(norm, config.optim.clip_grad))
    outcome = StepOutcome(
        loss=sums.loss / sums.tokens if sums.tokens else math.nan,
        grad_norm=norm,
        lr=lr,
        loss_scale=scale,
        batch_size=batch_size,
        verdict=verdict,
        params_norm=_params_norm(run) if config.logging.log_params_norm else None,
        num_zeros=sums.zeros if config.logging.log_num_zeros_in_grad else None,
        stop=sums.stop,
    )
    return _state_after(state, outcome, config), outcome


def _update(run: Run, state: RunState, verdict: Verdict, lr: float, grad_factor: float) -> None:
    """Bring the weights to where the next step finds them."""
    if verdict.action == "apply":
        run.optimizer.step(
            applied_steps=state.applied.steps,
            lr=lr,
            weight_decay=run.weight_decay_schedule.at(state.applied),
            grad_factor=grad_factor,
        )
        run.weight_gather.start()
    elif verdict.action in ("skip", "overflow"):
        _catch_up(run)


def _catch_up(run: Run) -> None:
    """A step is taken and has no update, but where they are late that of the step before is still to come."""
    if isinstance(run.optimizer, DelayedAdamW):
        run.weight_gather.finish()  # of the step before: where that is not computed, no forward has waited for it
        run.optimizer.pass_over()
        run.weight_gather.start()


def pass_over(run: Run, state: RunState) -> RunState:
    """Take step number `state.step + 1` without computing it: its samples count as read, no gradient is taken."""
    run.source.skip()
    _catch_up(run)
    batch_size = run.batch_schedule.size_at(state.consumed_samples)
    # Counted anew at each replay: one fault after the other, each with a roll-back of its own, must come to an end.
    rolled_back = state.step + 1 in state.skipped_steps
    return replace(
        state,
        step=state.step + 1,
        consumed_samples=state.consumed_samples + batch_size,
        recent_loss=state.recent_loss.plus_fault() if rolled_back else state.recent_loss,
    )


def _state_after(state: RunState, outcome: StepOutcome, config: RunConfig) -> RunState:
    action, recent = outcome.verdict.action, state.recent_loss
    if action in ("rollback", "stop"):
        return state
    taken = replace(state, step=state.step + 1, consumed_samples=state.consumed_samples + outcome.batch_size)
    if action == "skip":
        return replace(taken, recent_loss=recent.plus_fault())
    scale = after_step(state.loss_scale, action == "overflow", config.optim)
    if action == "overflow":
        return replace(taken, loss_scale=scale)
    return replace(
        taken,
        loss_scale=scale,
        applied=state.applied.plus(outcome.batch_size),
        recent_loss=recent.plus(outcome.loss),
    )


@dataclass(frozen=True)
class _Sums:
    squares: float
    loss: float
    tokens: int
    zeros: int
    stop: Stop | None


def _global_sums(run: Run, result: PipelineResult, votes: Sequence[float], *, local: bool) -> _Sums:
    """Everything that a step must know of all ranks, in one all-reduce; each logical element is counted once.

    local: each dp rank has its own gradients. The norm is then the root mean square over dp of those of dp x its own,
    which is what a rank takes for the batch's (decision 0012); zeros are counted on one of them.
    """
    ctx = run.ctx
    squares, zeros = 0.0, 0
    grads = counted_grads(run.reducer.buckets)
    if local:
        squares = ctx.dp.size * sum_of_squares(grads)
    elif run.reducer.counts:
        squares = sum_of_squares(grads)
    if run.config.logging.log_num_zeros_in_grad and run.reducer.counts:
        zeros = sum(int((grad == 0).sum()) for grad in grads)
    if run.config.logging.log_num_zeros_in_grad and ctx.dp.coordinate == 0:
        zeros -= padding_elements(run.reducer.parameters)  # of the whole place, however its dp ranks share it
    loss, tokens = (float(result.loss_sum), float(result.token_count)) if counts_loss(ctx) else (0.0, 0.0)
    vector = torch.tensor([squares, loss, tokens, zeros, *votes], dtype=torch.float64, device=ctx.device)
    squares, loss, tokens, zeros, *total_votes = all_reduce(vector, ctx.world).tolist()
    return _Sums(squares, loss, int(tokens), int(zeros), decided(total_votes))


def counts_loss(ctx: ParallelContext) -> bool:
    """Whether this rank is the one of its tp group that reports the loss, which all of them know."""
    return ctx.tp.coordinate == 0 and ctx.is_last_stage


def _params_norm(run: Run) -> float:
    """L2 norm of all weights, each counted once."""
    squares = sum_of_squares(counted_weights(run.reducer.buckets)) if run.reducer.counts else 0.0
    total = torch.tensor([squares], dtype=torch.float64, device=run.ctx.device)
    return math.sqrt(float(all_reduce(total, run.ctx.world)))
