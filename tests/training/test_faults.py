# SPDX-License-Identifier: Apache-2.0
import math
from functools import reduce
from typing import Any

import pytest

from megatron_core.config.training import TrainingConfig
from megatron_core.training.faults import RecentLoss, Seen, Verdict, judge


def seen(*losses: float) -> RecentLoss:
    return reduce(RecentLoss.plus, losses, RecentLoss())


def test_the_mean_is_plain_at_first_and_then_forgets() -> None:
    assert seen(4.0, 2.0, 3.0) == RecentLoss(pytest.approx(3.0), 3)
    assert seen(*range(20)).mean == pytest.approx(9.5)
    assert seen(*[2.0] * 20, 4.0).mean == pytest.approx(0.95 * 2 + 0.05 * 4)
    assert seen(*[9.0] * 5, *[1.0] * 200).mean == pytest.approx(1.0, abs=1e-3)


def test_what_is_no_number_does_not_enter_the_mean() -> None:
    assert seen(2.0, math.nan, math.inf) == seen(2.0)


def test_a_spike_is_told_from_what_is_usual() -> None:
    usual = seen(*[2.0] * 10)
    assert usual.is_spike(3.01, 1.5) and usual.is_spike(math.inf, 1.5)
    assert not usual.is_spike(2.99, 1.5) and not usual.is_spike(math.nan, 1.5)


def test_a_falling_loss_and_the_first_losses_are_no_spikes() -> None:
    assert not seen(*[2.0] * 9).is_spike(100.0, 1.5)
    recent = RecentLoss()
    for step in range(100):
        loss = 10 / (1 + step / 10)
        assert not recent.is_spike(loss, 1.01)
        recent = recent.plus(loss)


def test_faults_are_counted_until_a_step_is_applied() -> None:
    recent = seen(2.0).plus_fault().plus_fault()
    assert recent == RecentLoss(2.0, 1, 2)
    assert recent.plus(2.0).faults == 0 and recent.plus(math.nan).faults == 0


USUAL = seen(*[2.0] * 10)
BATCH = "The batch was samples 512 to 575; no update was made."


def verdict(
    loss: float = 2.0, norm: float = 1.0, *, recent: RecentLoss = USUAL, fp16: bool = False, **config: Any
) -> Verdict:
    step = Seen(step=9, first_sample=512, batch_size=64, loss=loss, grad_norm=norm)
    return judge(step, recent, TrainingConfig(**config), fp16=fp16)


def test_an_ordinary_step_is_applied() -> None:
    assert verdict() == verdict(loss=100.0) == Verdict("apply")
    assert verdict(loss=2.9, loss_spike_policy="stop") == Verdict("apply")


@pytest.mark.parametrize(
    ("loss", "norm", "numbers"),
    [
        (math.nan, math.nan, "loss nan, gradient norm nan"),
        (2.0, math.inf, "loss 2.0, gradient norm inf"),
        (math.inf, 1.0, "loss inf, gradient norm 1.0"),
    ],
)
def test_what_is_no_number_ends_the_run_unless_told_otherwise(loss: float, norm: float, numbers: str) -> None:
    assert verdict(loss, norm) == Verdict(
        "stop",
        f"step 9: {numbers}. {BATCH} --nan-policy skip or rollback leaves such batches out, "
        "--no-check-for-nan-in-loss-and-grad goes on regardless.",
    )
    assert verdict(loss, norm, check_for_nan_in_loss_and_grad=False).action == "apply"


def test_a_batch_may_be_left_out_with_or_without_a_roll_back() -> None:
    left_out = (
        "step 9: loss nan, gradient norm nan. The batch was samples 512 to 575; no update was made. The batch is "
    )
    assert verdict(math.nan, math.nan, nan_policy="skip") == Verdict("skip", f"{left_out}left out.")
    after = verdict(math.nan, math.nan, nan_policy="rollback")
    assert after == Verdict("rollback", f"{left_out}left out after a roll-back.")


def test_an_overflow_is_the_loss_scaler_s_and_a_loss_that_is_no_number_is_not() -> None:
    assert verdict(norm=math.inf, fp16=True, nan_policy="stop") == Verdict("overflow")
    assert verdict(loss=9.0, norm=math.nan, fp16=True, loss_spike_policy="stop") == Verdict("overflow")
    assert verdict(loss=math.nan, norm=math.nan, fp16=True).action == "stop"
    unchecked = verdict(loss=math.nan, norm=math.nan, fp16=True, check_for_nan_in_loss_and_grad=False)
    assert unchecked == Verdict("overflow")


def test_a_spike_follows_its_own_policy() -> None:
    assert verdict(loss=3.5, loss_spike_policy="stop") == Verdict(
        "stop",
        f"step 9: loss 3.5000 is above 3.0000, 1.5 times the recent mean. {BATCH} --loss-spike-policy skip or rollback "
        "leaves such batches out, ignore goes on regardless.",
    )
    assert verdict(loss=3.5, loss_spike_policy="skip", loss_spike_factor=1.7).action == "skip"
    assert verdict(loss=3.5, loss_spike_policy="skip", loss_spike_factor=1.8).action == "apply"
    assert verdict(loss=3.5, loss_spike_policy="rollback", nan_policy="stop").action == "rollback"
    assert verdict(loss=3.5, recent=seen(2.0), loss_spike_policy="stop").action == "apply"


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_faults_in_a_row_mean_that_the_weights_are_broken(policy: str) -> None:
    recent, passed_over = USUAL, 0
    while verdict(loss=9.0, recent=recent, loss_spike_policy=policy).action == policy:
        recent, passed_over = recent.plus_fault(), passed_over + 1
    assert passed_over == 10
    last = verdict(loss=9.0, recent=recent, loss_spike_policy=policy)
    assert last.action == "stop" and "fault 11 in a row: load an older checkpoint" in last.reason
    assert verdict(loss=9.0, recent=recent.plus(2.0), loss_spike_policy=policy).action == policy
