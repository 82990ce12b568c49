# SPDX-License-Identifier: Apache-2.0
"""Memory without playing the schedule is about what playing it gives."""

import pytest

from megatron_core.config.parallel import ScheduleName
from megatron_core.planner.hardware import hardware
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.peak_memory import peak_memory, quick_peak_memory
from megatron_core.planner.workload import Recompute
from tests.planner.test_step_time import GPT3
from tests.planner.workloads import workload

NODES = hardware("dgx-a100-80")


@pytest.mark.parametrize("granularity", [None, "full"])
@pytest.mark.parametrize("microbatches", [2, 8, 24])
@pytest.mark.parametrize(
    "schedule, chunks", [("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("zero-bubble", 1)]
)
def test_it_is_close(schedule: ScheduleName, chunks: int, microbatches: int, granularity: str | None) -> None:
    step = workload(
        GPT3,
        tp=8,
        pp=8,
        chunks=chunks,
        schedule=schedule,
        microbatches=microbatches,
        sequence_parallel=True,
        recompute=Recompute(granularity=granularity),
    )
    exact = max(memory.total for memory in MemoryModel(step, NODES).stages)
    assert quick_peak_memory(step, NODES).total == pytest.approx(exact, rel=0.03)
    assert peak_memory(step, NODES).total == pytest.approx(exact, rel=0.001)
