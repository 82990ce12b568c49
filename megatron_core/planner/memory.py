# SPDX-License-Identifier: Apache-2.0
"""Bytes of device memory that a rank of each stage needs, by what they are for, and whether they fit.

For this project's own program they are what `training/live_bytes.py` counts in a step and a dry run finds; for the
programs that published rows were measured with see `program_memory.py`. An allowance stands beside both.
"""

from dataclasses import dataclass
from functools import cached_property

from megatron_core.planner.engine import OURS
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.memory_parts import Memory
from megatron_core.planner.program_memory import program_memory
from megatron_core.planner.stage_memory import stage_memory
from megatron_core.planner.workload import Workload


@dataclass(frozen=True)
class MemoryModel:
    """Of one workload on one kind of device."""

    workload: Workload
    hardware: Hardware

    def stage(self, stage: int) -> Memory:
        """Of a rank of this stage, at the worst moment of a step."""
        if self.workload.engine is not OURS:
            return program_memory(self.workload, stage)
        return stage_memory(self.workload, stage, on_cpu=self.hardware.device.multiprocessors == 0)

    @cached_property
    def stages(self) -> tuple[Memory, ...]:
        """All stages."""
        return tuple(self.stage(stage) for stage in range(self.workload.pp))
