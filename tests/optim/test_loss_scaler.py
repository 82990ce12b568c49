# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.config.optim import OptimConfig
from megatron_core.optim.loss_scaler import LossScale, after_step, initial, update


def history(optim: OptimConfig, overflows: str) -> list[float]:
    state, scales = initial(optim), []
    for flag in overflows:
        state = after_step(state, flag == "T", optim)
        scales.append(state.scale)
    return scales


def test_hysteresis_and_growth_sequence() -> None:
    """Case FPX-01, to the digit."""
    optim = OptimConfig(fp16=True, initial_loss_scale=65536, loss_scale_window=4, hysteresis=2)
    assert history(optim, "TTTFFFFTT") == [65536, 32768, 16384, 16384, 16384, 16384, 32768, 32768, 16384]


def test_one_clean_step_gives_no_patience_back() -> None:
    optim = OptimConfig(fp16=True, initial_loss_scale=1024, loss_scale_window=4, hysteresis=3)
    assert history(optim, "TFTFTFT") == [1024, 1024, 1024, 1024, 512, 512, 256]


def test_an_overflow_starts_the_window_again() -> None:
    optim = OptimConfig(fp16=True, initial_loss_scale=1024, loss_scale_window=3, hysteresis=2)
    assert history(optim, "FFTFFF") == [1024, 1024, 1024, 1024, 1024, 2048]


def test_stops_falling_at_the_minimum() -> None:
    optim = OptimConfig(fp16=True, initial_loss_scale=8, min_loss_scale=3, hysteresis=1)
    assert history(optim, "TTTT") == [4, 3, 3, 3]


@pytest.mark.parametrize(
    ("optim", "scale"),
    [
        (OptimConfig(), 1),
        (OptimConfig(bf16=True), 1),
        (OptimConfig(bf16=True, loss_scale=4096), 1),
        (OptimConfig(fp64=True), 1),
        (OptimConfig(fp16=True, loss_scale=4096), 4096),
    ],
)
def test_everything_but_dynamic_fp16_stays_fixed(optim: OptimConfig, scale: float) -> None:
    assert initial(optim).scale == scale
    assert history(optim, "TTTFFF") == [scale] * 6


@settings(deadline=None)
@given(st.text("TF", max_size=40), st.integers(0, 40), st.integers(1, 6), st.integers(1, 4))
def test_state_alone_continues_the_history(flags: str, cut: int, window: int, hysteresis: int) -> None:
    """A run stopped and resumed from the three numbers goes on as if it had never stopped (case FPX-03)."""
    optim = OptimConfig(fp16=True, initial_loss_scale=2.0**16, loss_scale_window=window, hysteresis=hysteresis)
    state = initial(optim)
    for flag in flags[:cut]:
        state = after_step(state, flag == "T", optim)
    resumed = LossScale(state.scale, state.clean_steps, state.hysteresis_left)
    scales = []
    for flag in flags[cut:]:
        resumed = update(resumed, flag == "T", window=window, hysteresis=hysteresis, min_scale=1.0)
        scales.append(resumed.scale)
    assert scales == history(optim, flags)[cut:]
