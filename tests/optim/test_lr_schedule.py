# SPDX-License-Identifier: Apache-2.0
"""Right values are cases RES-02, RES-03 and FPX-04 (relative tolerances are those of the digits given there)."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.config.optim import OptimConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.optim.lr_schedule import Applied, LRSchedule, lr_schedule, schedule_unit

STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
WSD_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")


def schedule(style: str = "cosine", *, iters: int = 110, **optim: object) -> LRSchedule:
    defaults: dict[str, object] = {"lr": 1e-3, "min_lr": 1e-4, "lr_warmup_iters": 10, "lr_wsd_decay_iters": 20}
    config = OptimConfig(**{**defaults, "lr_decay_style": style, **optim})  # type: ignore[arg-type]
    return lr_schedule(config, TrainingConfig(micro_batch_size=1, global_batch_size=4, train_iters=iters))


@pytest.mark.parametrize(
    ("step", "lr"), [(5, 5e-4), (10, 1e-3), (60, 5.5e-4), (100, 1.2202e-4), (110, 1e-4), (111, 1e-4)]
)
def test_cosine_decays_to_the_floor_by_its_formula(step: int, lr: float) -> None:
    assert schedule().value(step) == pytest.approx(lr, rel=1e-4)


@pytest.mark.parametrize(("step", "lr"), [(198, 3.015e-6), (219, 6.3e-9)])
def test_warm_up_is_subtracted_once(step: int, lr: float) -> None:
    decay = schedule(iters=220, lr=1e-4, min_lr=0.0, lr_warmup_iters=22)
    assert decay.value(step) == pytest.approx(lr, rel=5e-3)


@pytest.mark.parametrize(("applied", "lr"), [(0, 1e-3), (10, 5.5e-4), (11, 4.796e-4), (12, 4.109e-4), (20, 1e-4)])
def test_resume_needs_nothing_but_the_number_of_applied_steps(applied: int, lr: float) -> None:
    cosine = schedule(iters=20, lr_warmup_iters=0)
    assert cosine.at(Applied(steps=applied, samples=4 * applied)) == pytest.approx(lr, rel=2e-4)


def test_linear() -> None:
    linear = schedule("linear")
    assert [linear.value(s) for s in (0, 10, 60, 110, 200)] == pytest.approx([0.0, 1e-3, 5.5e-4, 1e-4, 1e-4])


def test_constant_never_decays() -> None:
    assert [schedule("constant").value(s) for s in (0, 5, 10, 110, 500)] == pytest.approx([0.0, 5e-4, 1e-3, 1e-3, 1e-3])


def test_inverse_square_root_meets_the_warm_up_and_stops_at_the_floor() -> None:
    decay = schedule("inverse-square-root", iters=10_000)
    assert [decay.value(s) for s in (10, 40, 90)] == pytest.approx([1e-3, 5e-4, 1e-3 / 3])
    assert decay.value(4000) == 1e-4
    # Without warm-up the second step is scaled by steps, not by samples.
    no_warmup = schedule("inverse-square-root", iters=10_000, lr_warmup_iters=0)
    assert [no_warmup.value(s) for s in (0, 1, 4)] == pytest.approx([1e-3, 1e-3, 5e-4])


@pytest.mark.parametrize(
    ("wsd_style", "halfway"),
    [("linear", 0.5), ("cosine", 0.5), ("minus_sqrt", 1 - math.sqrt(0.5)), ("exponential", math.sqrt(2) - 1)],
)
def test_wsd_is_flat_then_falls_to_the_floor(wsd_style: str, halfway: float) -> None:
    wsd = schedule("WSD", lr_wsd_decay_style=wsd_style)
    assert [wsd.value(s) for s in (10, 50, 90)] == [1e-3, 1e-3, 1e-3]
    assert wsd.value(100) == pytest.approx(1e-4 + 9e-4 * halfway)
    assert wsd.value(110) == pytest.approx(1e-4)


def test_warm_up_starts_where_it_is_told_and_may_be_a_fraction() -> None:
    decay = schedule(lr_warmup_iters=0, lr_warmup_fraction=0.25, lr_warmup_init=1e-5)
    assert decay.warmup == 27.5
    assert [decay.value(0), decay.value(11), decay.value(27)] == pytest.approx([1e-5, 4.06e-4, 9.82e-4])
    assert decay.value(28) < 1e-3


@pytest.mark.parametrize("style", STYLES)
def test_no_warm_up_starts_at_the_peak(style: str) -> None:
    assert schedule(style, lr_warmup_iters=0).value(0) == 1e-3


@pytest.mark.parametrize("style", STYLES)
def test_warm_up_as_long_as_the_decay_divides_by_nothing(style: str) -> None:
    decay = schedule(style, lr_warmup_iters=110)
    assert decay.value(110) == 1e-3
    assert decay.value(111) == (1e-3 if style == "constant" else 1e-4)


@pytest.mark.parametrize("style", ["linear", "cosine"])
def test_decay_length_is_its_own_and_not_that_of_the_run(style: str) -> None:
    shorter, longer = schedule(style, lr_decay_iters=50), schedule(style, lr_decay_iters=210)
    assert shorter.value(30) == pytest.approx(5.5e-4)
    assert shorter.value(51) == shorter.value(110) == 1e-4
    assert longer.value(110) == pytest.approx(5.5e-4)


def test_a_skipped_step_leaves_the_learning_rate_where_it_was() -> None:
    warmup = schedule("constant")
    applied, skipped, rates = Applied(), {1, 2, 5}, []
    for iteration in range(1, 11):
        rates.append(warmup.at(applied))
        applied = applied if iteration in skipped else applied.plus(4)
    assert rates == pytest.approx([1e-4 * n for n in (0, 0, 0, 1, 2, 2, 3, 4, 5, 6)])
    assert applied == Applied(steps=7, samples=28)


def test_samples_are_counted_when_the_run_is_given_in_samples() -> None:
    training = TrainingConfig(micro_batch_size=1, global_batch_size=4, train_samples=440)
    optim = OptimConfig(lr=1e-3, min_lr=1e-4, lr_decay_style="cosine", lr_warmup_samples=40)
    assert schedule_unit(training) == "samples"
    in_samples, in_steps = lr_schedule(optim, training), schedule()
    for steps in range(112):
        applied = Applied(steps=steps, samples=4 * steps)
        assert in_samples.at(applied) == pytest.approx(in_steps.at(applied), rel=1e-12)
    no_warmup = lr_schedule(OptimConfig(lr=1e-3, lr_decay_style="inverse-square-root"), training)
    assert [no_warmup.value(s) for s in (0, 4, 16)] == pytest.approx([1e-3, 1e-3, 5e-4])


@settings(deadline=None)
@given(
    style=st.sampled_from(STYLES),
    wsd_style=st.sampled_from(WSD_STYLES),
    warmup=st.integers(0, 60),
    length=st.integers(1, 50),
    position=st.integers(0, 120),
)
def test_rises_in_warm_up_then_never_rises_and_stays_within_bounds(
    style: str, wsd_style: str, warmup: int, length: int, position: int
) -> None:
    decay = schedule(
        style, lr_warmup_iters=warmup, lr_decay_iters=length, lr_wsd_decay_style=wsd_style, lr_wsd_decay_iters=length
    )
    here, after = decay.value(position), decay.value(position + 1)
    assert 0 <= here <= 1e-3 * (1 + 1e-12)
    if position < warmup:
        assert after > here
    else:
        assert after <= here * (1 + 1e-12)
        assert here >= 1e-4 * (1 - 1e-12)
