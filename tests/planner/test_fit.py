# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from megatron_core.planner.constants import Constants
from megatron_core.planner.fit import Measured, fit
from megatron_core.planner.rows import row_hardware, row_workload
from megatron_core.planner.step_time import StepModel
from tests.published import published


def test_finds_the_constants_that_made_the_times() -> None:
    truth = dataclasses.replace(Constants(), matmul_share=0.6, memory_share=0.95, hop_s=1e-5)
    rows: list[Measured] = []
    for row in published("split_calibration.csv")[:12]:
        work, cluster = row_workload(row), row_hardware(row)
        rows.append((work, cluster, StepModel(work, cluster, truth).step(quick=True).total))
    found = fit(rows, Constants())
    errors = [abs(StepModel(work, cluster, found).step(quick=True).total / time - 1) for work, cluster, time in rows]
    assert max(errors) < 0.02
    assert found.matmul_share == pytest.approx(0.6, rel=0.05)


@pytest.mark.slow
def test_the_constants_are_those_of_the_calibration_rows() -> None:
    rows = [
        (row_workload(row), row_hardware(row), float(row["iter_time_s"])) for row in published("split_calibration.csv")
    ]
    found = fit(rows, Constants())
    for field in dataclasses.fields(Constants):
        assert getattr(found, field.name) == pytest.approx(getattr(Constants(), field.name), rel=0.1), field.name
