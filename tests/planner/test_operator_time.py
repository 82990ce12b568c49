# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import ConfigError
from megatron_core.planner.operator_time import OperatorTime
from megatron_core.planner.work import Operator
from tests.planner.measured import cpu

TIMES = OperatorTime(cpu({"gelu_tanh": [(1000, 1e-5), (100, 4e-6)], "layer": [(1, 2e-4)]}).device)


@pytest.mark.parametrize(
    "amount, seconds",
    [(10, 4e-6), (100, 4e-6), (550, 7e-6), (1000, 1e-5), (3000, 3e-5)],
    ids=["before the first", "the first", "between", "the last", "beyond"],
)
def test_times_lie_on_lines_between_measurements(amount: int, seconds: float) -> None:
    assert TIMES.of(Operator("gelu_tanh", amount)) == pytest.approx(seconds)


def test_what_was_not_measured_is_named() -> None:
    with pytest.raises(ConfigError, match=r"box: rotary was not measured; run tools/plan.py calibrate anew"):
        TIMES.of(Operator("rotary", 1))
