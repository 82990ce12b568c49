# SPDX-License-Identifier: Apache-2.0
"""What one step decides; that its numbers are right at every layout is proved end to end."""

import math
from dataclasses import replace

import pytest
import torch

from megatron_core.data.sampler import StepPlan
from megatron_core.training.build import Run
from megatron_core.training.run_data import training_plans
from megatron_core.training.state import RunState
from megatron_core.training.stop import NO_VOTES, Stop
from megatron_core.training.train_step import StepOutcome, counts_loss, pass_over, train_step
from tests.e2e.proof import FAMILIES, start_rank, whole_weights
from tests.rank_pool import run_ranks

GPT2 = FAMILIES["gpt2"]


def test_state_and_outcome_of_a_step() -> None:
    run, state = start_rank(0, 1, f"{GPT2} --log-params-norm --log-num-zeros-in-grad")
    before = whole_weights(run)
    state, outcome = train_step(run, state)
    after = whole_weights(run)
    assert (state.step, state.applied.steps, state.applied.samples, state.consumed_samples) == (1, 1, 8, 8)
    assert (outcome.lr, outcome.loss_scale, outcome.batch_size) == (1e-3, 1.0, 8)
    assert not outcome.skipped and not outcome.stop
    assert outcome.loss == pytest.approx(math.log(61), rel=0.02)
    squares = sum(float(tensor.double().square().sum()) for tensor in after.values())
    assert outcome.params_norm == pytest.approx(math.sqrt(squares), rel=1e-6)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == set(before), "every parameter has a gradient every step"


def test_norms_and_zeros_are_counted_only_where_asked_for() -> None:
    run, state = start_rank(0, 1, GPT2)
    outcome = train_step(run, state)[1]
    assert outcome.params_norm is None and outcome.num_zeros is None


def test_zeros_are_counted_without_padding() -> None:
    """Unused rows of an untied table have zero gradients, padding rows do not count."""
    flags = f"{GPT2} --untie-embeddings-and-output-weights --log-num-zeros-in-grad --disable-bias-linear"
    for divisor in (1, 128):
        run, state = start_rank(0, 1, f"{flags} --make-vocab-size-divisible-by {divisor}")
        used = {int(t) for n in range(8) for t in run.data.datasets.train.sample(n).tokens[:-1]}
        assert train_step(run, state)[1].num_zeros == (61 - len(used)) * 32


def step_with_a_spoilt_gradient(flags: str) -> tuple[RunState, StepOutcome]:
    run, state = start_rank(0, 1, flags)
    finish = run.reducer.finish

    def spoiled() -> None:
        finish()
        run.reducer.buckets[0].grads[0] = torch.nan

    run.reducer.finish = spoiled  # type: ignore[method-assign]
    before = whole_weights(run)
    state, outcome = train_step(run, state)
    assert outcome.skipped == all(torch.equal(before[name], tensor) for name, tensor in whole_weights(run).items())
    return state, outcome


@pytest.mark.parametrize(("policy", "steps"), [("stop", 0), ("rollback", 0), ("skip", 1)])
def test_a_gradient_that_is_no_number_changes_no_weight(policy: str, steps: int) -> None:
    state, outcome = step_with_a_spoilt_gradient(f"{GPT2} --nan-policy {policy} --save x --save-interval 1")
    assert outcome.verdict.action == policy
    assert "gradient norm nan. The batch was samples 0 to 7; no update" in outcome.verdict.reason
    assert (state.step, state.consumed_samples, state.applied.steps) == (steps, 8 * steps, 0)
    assert state.recent_loss.faults == steps


def test_it_may_be_let_through() -> None:
    state, _ = step_with_a_spoilt_gradient(f"{GPT2} --no-check-for-nan-in-loss-and-grad")
    assert state.applied.steps == 1


def test_a_step_that_is_passed_over_reads_its_batch_and_no_more() -> None:
    """The next step is the second, on the second batch, as if the first had never been asked for."""
    run, state = start_rank(0, 1, GPT2)
    before = whole_weights(run)
    state = pass_over(run, state)
    assert (state.step, state.consumed_samples, state.applied.steps) == (1, 8, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in whole_weights(run).items())
    tokens = torch.cat([microbatch.tokens for microbatch in run.source.step(plan_of(run, state), None)])
    expected = [run.data.datasets.train.sample(n).tokens[:-1].tolist() for n in range(8, 16)]
    assert tokens.tolist() == expected


def test_a_step_that_a_roll_back_left_out_is_a_fault_and_one_that_the_user_left_out_is_none() -> None:
    run, state = start_rank(0, 1, GPT2)
    assert pass_over(run, state).recent_loss.faults == 0
    assert pass_over(run, replace(state, skipped_steps=(1,))).recent_loss.faults == 1


def weights_under_way(rank: int, world_size: int, flags: str) -> list[int]:
    """How many buckets are being gathered when late updates come to them: after a step, and where one is left out."""
    run, state = start_rank(rank, world_size, flags)
    give, found = run.optimizer.pass_over, []

    def watched() -> None:
        found.append(len(run.weight_gather._pending))
        give()

    run.optimizer.pass_over = watched
    state, _ = train_step(run, state)
    pass_over(run, state)
    run.weight_gather.finish()
    return found


def test_weights_that_no_forward_has_waited_for_are_there_before_others_follow() -> None:
    late = "--optimizer-cpu-offload --optimizer-delayed-update-start 0"
    flags = f"{GPT2} {late} --use-distributed-optimizer --overlap-param-gather"
    assert run_ranks(weights_under_way, 2, flags) == [[0, 0]] * 2


def plan_of(run: Run, state: RunState) -> StepPlan:
    return next(training_plans(run.config, run.ctx, run.batch_schedule, state.consumed_samples))


def stop_of_one_rank(rank: int, world_size: int, flags: str) -> list[Stop | None]:
    run, state = start_rank(rank, world_size, flags)
    term = [float(reason is Stop.SIGTERM) for reason in Stop]
    return [train_step(run, state, votes)[1].stop for votes in (NO_VOTES, term if rank == 1 else NO_VOTES)]


@pytest.mark.parametrize("layout", ["--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2", ""])
def test_one_rank_s_wish_to_stop_reaches_all(layout: str) -> None:
    assert run_ranks(stop_of_one_rank, 2, f"{GPT2} {layout}") == [[None, Stop.SIGTERM]] * 2


def test_a_batch_without_targets_changes_nothing_but_counters() -> None:
    run, state = start_rank(0, 1, f"{GPT2} --weight-decay 0")
    before = whole_weights(run)
    give = run.source.step

    def masked(plan, dropout):
        batches = give(plan, dropout)
        for batch in batches:
            batch.loss_mask.zero_()
        return batches

    run.source.step = masked  # type: ignore[method-assign]
    state, outcome = train_step(run, state)
    assert math.isnan(outcome.loss) and outcome.grad_norm == 0.0  # there is no mean of nothing
    assert all(torch.equal(before[name], tensor) for name, tensor in whole_weights(run).items())


def reports_loss(rank: int, world_size: int, flags: str) -> bool:
    return counts_loss(start_rank(rank, world_size, flags)[0].ctx)


def test_one_rank_of_each_replica_reports_the_loss() -> None:
    layout = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    assert run_ranks(reports_loss, 4, f"{GPT2} {layout}") == [False, False, True, False]
