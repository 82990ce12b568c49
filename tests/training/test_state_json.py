# SPDX-License-Identifier: Apache-2.0
"""The scalars survive bit by bit (FPX-03, FPX-04, RES-02); whatever else a file holds is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest

from megatron_core.config.cli import parse
from megatron_core.config.run import RunConfig
from megatron_core.errors import CheckpointError
from megatron_core.optim.loss_scaler import LossScale, after_step, initial
from megatron_core.optim.lr_schedule import Applied, lr_schedule
from megatron_core.training.faults import RecentLoss
from megatron_core.training.state import RunState
from megatron_core.training.state_json import seed_of, state_from_json, state_to_json
from tests.e2e.proof import FAMILIES, SMALL, config_of

GPT2 = FAMILIES["gpt2"]
FP16 = config_of(f"{GPT2} --fp16 --loss-scale-window 5", 1)
STATE = RunState(
    step=7,
    applied=Applied(5, 40),
    consumed_samples=56,
    loss_scale=LossScale(0.1 + 0.2, clean_steps=3, hysteresis_left=1),
    recent_loss=RecentLoss(1 / 3, 5, 1),
    elapsed_s=1e3 / 7,
    skipped_steps=(4, 9),
)


def there_and_back(state: RunState, saved: RunConfig, config: RunConfig, *, with_optim: bool = True) -> RunState:
    text = json.dumps(state_to_json(state, saved), allow_nan=False)
    return state_from_json(json.loads(text), config, with_optim=with_optim)


def test_every_field_comes_back_exactly() -> None:
    assert there_and_back(STATE, FP16, FP16) == STATE
    saved = state_to_json(STATE, FP16)
    assert saved["consumed_tokens"] == 56 * 16
    assert seed_of(saved) == 1234


def test_a_loss_scale_goes_on_in_the_middle_of_its_history() -> None:
    """FPX-03: saved after any step, scale and counters are those of the straight run at every later one."""
    overflows = [False, True, False, True, True, False, False, False, False, False, False, True]
    scale = initial(FP16.optim)
    straight = []
    for overflow in overflows:
        scale = after_step(scale, overflow, FP16.optim)
        straight.append(scale)
    for stop in range(1, len(overflows)):
        resumed = there_and_back(RunState(loss_scale=straight[stop - 1]), FP16, FP16).loss_scale
        for overflow, expected in zip(overflows[stop:], straight[stop:]):
            resumed = after_step(resumed, overflow, FP16.optim)
            assert resumed == expected


@pytest.mark.parametrize("length", ["--train-iters 20", "--train-samples 160 --lr-warmup-samples 24"])
def test_the_learning_rate_goes_on_where_it_was(length: str) -> None:
    """RES-02, FPX-04: neither from zero, nor a step further, nor past steps that were skipped."""
    small = SMALL.replace("--train-iters 10", length).replace("constant", "cosine --min-lr 1e-4")
    config = parse(f"{small} {GPT2} --fp16".split(), 1).config
    schedule = lr_schedule(config.optim, config.training)
    state = RunState(loss_scale=initial(config.optim))
    straight = []
    for step in range(20):
        straight.append(schedule.at(state.applied))
        state = there_and_back(state, config, config)
        assert schedule.at(state.applied) == straight[-1]
        skipped = step in (0, 1, 5)
        applied = state.applied if skipped else state.applied.plus(8)
        state = replace(state, step=step + 1, applied=applied, consumed_samples=state.consumed_samples + 8)
    assert straight[0] == straight[1] == straight[2] and straight[5] == straight[6] and len(set(straight)) == 17


@pytest.mark.parametrize(
    ("saved", "now", "scale"),
    [
        ("", "--fp16", 2.0**32),
        ("--fp16 --loss-scale 8", "--fp16 --initial-loss-scale 64", 64.0),
        ("--fp16", "--fp16 --loss-scale 8", 8.0),
        ("--fp16", "--bf16", 1.0),
        ("--fp16", "--fp16 --initial-loss-scale 64", 0.1 + 0.2),
    ],
)
def test_a_scale_without_history_starts_as_in_a_new_run(saved: str, now: str, scale: float) -> None:
    config = config_of(f"{GPT2} {now}", 1)
    resumed = there_and_back(STATE, config_of(f"{GPT2} {saved}", 1), config)
    assert resumed.loss_scale.scale == scale
    assert resumed.applied == STATE.applied


def test_a_new_optimizer_counts_from_zero_but_data_go_on() -> None:
    """--no-load-optim: its schedule is part of it."""
    resumed = there_and_back(STATE, FP16, FP16, with_optim=False)
    assert (resumed.applied, resumed.loss_scale) == (Applied(), initial(FP16.optim))
    assert (resumed.step, resumed.consumed_samples, resumed.elapsed_s) == (7, 56, STATE.elapsed_s)
    assert (resumed.recent_loss, resumed.skipped_steps) == (RecentLoss(), (4, 9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": -1}, "^the run's state: step is -1, not a whole number"),
        ({"applied_steps": 1.5}, r"applied_steps is 1\.5, not a whole"),
        ({"applied_steps": 8}, "8 updates over 40 samples were applied in 7 steps over 56 samples"),
        ({"applied_samples": 57}, "5 updates over 57 samples were applied in 7 steps over 56"),
        ({"consumed_samples": None}, "consumed_samples is None, not a whole"),
        ({"consumed_tokens": "x"}, "consumed_tokens is 'x', not a whole"),
        ({"elapsed_s": -1.0}, r"elapsed_s is -1\.0, below 0"),
        ({"elapsed_s": float("nan")}, "elapsed_s is nan, not a finite number"),
        ({"loss_scale": 1.0}, r"loss_scale is 1\.0, not an object"),
        ({"loss_scale": {"scale": 0.0, "clean_steps": 0, "hysteresis_left": 0}}, r"scale is 0\.0, not above 0"),
        ({"loss_scale": {"scale": 1.0, "clean_steps": 0}}, "loss_scale has no hysteresis_left"),
        ({"recent_loss": {"mean": True, "count": 1, "faults": 0}}, "recent_loss: mean is True, not a finite number"),
        ({"skipped_steps": [1, "x"]}, "skipped_steps is 'x', not a whole"),
        ({"more": 1}, "unknown keys: 'more'"),
    ],
)
def test_what_is_not_as_written_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        state_from_json(state_to_json(STATE, FP16) | change, FP16, with_optim=True)


def test_what_is_missing_is_refused_by_name() -> None:
    saved = state_to_json(STATE, FP16)
    del saved["applied_samples"], saved["seed"]
    with pytest.raises(CheckpointError, match=r"^the run's state has no applied_samples, seed$"):
        state_from_json(saved, FP16, with_optim=True)
