# SPDX-License-Identifier: Apache-2.0
"""Public cases of optimizer and loss scale, in whole steps: what is counted, when, and who agrees on it."""

from typing import Any

import numpy as np
import pytest
import torch

from megatron_core.training.build import Run
from megatron_core.training.train_step import StepOutcome, train_step
from tests.e2e.proof import FAMILIES, Curve, reference, start_rank, train_rank, whole_weights
from tests.rank_pool import run_ranks

GPT2 = f"{FAMILIES['gpt2']} --micro-batch-size 4"
TP2 = "--tensor-model-parallel-size 2"


def record_updates(run: Run) -> list[dict[str, Any]]:
    """The keywords of every optimizer step to come."""
    calls: list[dict[str, Any]] = []
    step = run.optimizer.step

    def recording(**arguments: Any) -> None:
        calls.append(arguments)
        step(**arguments)

    run.optimizer.step = recording  # type: ignore[method-assign]
    return calls


def train(flags: str, steps: int) -> tuple[list[StepOutcome], list[dict[str, Any]], Run]:
    run, state = start_rank(0, 1, flags)
    updates, outcomes = record_updates(run), []
    for _ in range(steps):
        state, outcome = train_step(run, state)
        outcomes.append(outcome)
    assert state.applied.steps == len(updates), "the state counts updates"
    return outcomes, updates, run


def test_one_count_a_step_whatever_the_buckets() -> None:
    """OPT-04: a parameter a bucket or all in one: one update a step, and the same bits after 5."""
    weights = []
    for size in (1, 10**9):
        _, updates, run = train(f"{GPT2} --ddp-bucket-size {size} --num-layers 1 --clip-grad 0", 5)
        assert [update["applied_steps"] for update in updates] == [0, 1, 2, 3, 4]
        weights.append(whole_weights(run))
        assert (len(run.reducer.buckets) > 10) == (size == 1)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize("style", ["--lr-warmup-iters 10", "--lr-warmup-iters 3 --lr-decay-style cosine"])
def test_a_skipped_step_leaves_the_schedule_and_adam_where_they_were(style: str) -> None:
    """FPX-04: scale 2^32 overflows k times; lr at step i is that of step i - k, Adam counts applied updates."""
    steps = 26
    model = f"{GPT2} --num-layers 1 --train-iters {steps} {style}"
    expected = [outcome.lr for outcome in train(model, steps)[0]]
    outcomes, updates, _ = train(f"{model} --fp16 --initial-loss-scale 4294967296", steps)
    skips = np.cumsum([outcome.skipped for outcome in outcomes]) - [outcome.skipped for outcome in outcomes]
    assert 5 < skips[-1] < steps - 3, "the run must both skip and train"
    assert [outcome.lr for outcome in outcomes] == [expected[i - k] for i, k in enumerate(skips)]
    assert [update["applied_steps"] for update in updates] == list(range(len(updates)))
    assert [update["lr"] for update in updates] == expected[: len(updates)]


def test_weights_do_not_move_in_a_skipped_step_and_samples_do() -> None:
    """FPX-04: two steps at a scale that overflows."""
    run, state = start_rank(0, 1, f"{GPT2} --fp16 --loss-scale 1e30")
    before = whole_weights(run)
    for _ in range(2):
        state, outcome = train_step(run, state)
        assert outcome.skipped
    assert all(torch.equal(before[name], tensor) for name, tensor in whole_weights(run).items())
    assert (state.step, state.applied.steps, state.consumed_samples) == (2, 0, 16)


OVERFLOWS = [True, True, True, False, False, False, False, True, True]


def scales_of_a_run(rank: int, world_size: int, flags: str) -> list[tuple[float, bool]]:
    """(scale after the step, skipped), with overflows put into a gradient of the last rank alone."""
    run, state = start_rank(rank, world_size, flags)
    finish = run.reducer.finish
    overflowing = False

    def poisoned() -> None:
        finish()
        if overflowing and rank == world_size - 1:
            bucket = next(bucket for bucket in run.reducer.buckets if bucket.counted_ranges)
            bucket.grads[bucket.counted_ranges[0][0]] = torch.inf

    run.reducer.finish = poisoned  # type: ignore[method-assign]
    found = []
    for overflow in OVERFLOWS:
        overflowing = overflow
        state, outcome = train_step(run, state)
        found.append((state.loss_scale.scale, outcome.skipped))
    return found


@pytest.mark.parametrize("layout", [TP2, "--pipeline-model-parallel-size 2"])
def test_all_ranks_follow_one_rank_s_overflow(layout: str) -> None:
    """FPX-01's sequence through the training step: window 4, hysteresis 2, each overflow seen by one rank of two."""
    flags = f"{GPT2} --fp16 --initial-loss-scale 65536 --loss-scale-window 4 --hysteresis 2 {layout}"
    first, second = run_ranks(scales_of_a_run, 2, flags)
    assert first == second
    scales = [65536, 32768, 16384, 16384, 16384, 16384, 32768, 32768, 16384]
    assert first == list(zip(map(float, scales), OVERFLOWS))


@pytest.mark.parametrize("scale", [256, 16384])
def test_a_power_of_two_as_loss_scale_changes_nothing(scale: int) -> None:
    """OPS-04: loss and norm are unscaled, at any scale that fits fp16."""
    found: Curve = run_ranks(train_rank, 1, f"{GPT2} --fp16 --loss-scale {scale}", 5)[0]
    expected = reference(f"{GPT2} --fp16 --loss-scale 2048", 5)
    assert found.losses == pytest.approx(expected.losses, rel=1e-4)
    assert found.norms == pytest.approx(expected.norms, rel=1e-3)
