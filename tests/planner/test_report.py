# SPDX-License-Identifier: Apache-2.0
"""Plans in words."""

import pytest

from megatron_core.planner.hardware import hardware
from megatron_core.planner.report import limit, rates, time_table
from megatron_core.planner.step_time import StepTime
from tests.planner.test_explain import MT_NLG
from tests.planner.workloads import workload

STEP = StepTime(compute=6.0, recompute=2.0, tp=0.5, p2p=0.0, bubble=1.0, dp=0.25, optimizer=0.25)


def test_parts_of_a_step_add_up_and_empty_ones_are_left_out() -> None:
    rows = time_table(STEP)
    assert rows[0] == ("forward and backward", "6.000", "60.0%")
    assert rows[-1] == ("step", "10.000", "")
    assert "transfers between stages" not in [row[0] for row in rows]


def test_the_best_is_limited_by_its_largest_overhead_and_others_by_what_they_lose() -> None:
    other = StepTime(compute=6.0, recompute=0.0, tp=3.0, p2p=0.0, bubble=1.5, dp=0.25, optimizer=0.25)
    assert limit(STEP, STEP) == "2.00 s recomputation"
    assert limit(other, STEP) == "+2.50 s sums within layers (tp)"


def test_rates_count_model_flops() -> None:
    step = workload(MT_NLG, tp=8, pp=35, microbatches=280)
    tokens, tflops, mfu = rates(step, hardware("dgx-a100-80"), 37.83)
    assert tokens == pytest.approx(280 * 2048 / 37.83)
    assert mfu == pytest.approx(0.56, abs=0.005)  # Korthikanti et al. 2022, table 5
    assert tflops == pytest.approx(312 * mfu)
