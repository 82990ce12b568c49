# SPDX-License-Identifier: Apache-2.0
"""A run compares itself with its plan: after its first steps, what was expected of this hardware and what came."""

import logging
import statistics

from megatron_core.config.run import RunConfig
from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import hardware
from megatron_core.planner.peak_memory import peak_memory
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.metrics import StepMetrics

STEPS = 10
"""Steps of a process after which it compares; the first of them, which compiles and allocates, does not count."""
LOGGER = logging.getLogger(LOGGER_NAME)


def check_plan_hardware(config: RunConfig) -> None:
    """Raises ConfigError for --plan-hardware that is not known or does not compute in the run's precision."""
    if config.logging.plan_hardware is not None:
        hardware(config.logging.plan_hardware).device.peak(config.optim.precision)


class PlanCheck:
    """Collects the first steps of a process, on one rank."""

    def __init__(self, config: RunConfig, world_size: int) -> None:
        """Of a resolved run with --plan-hardware, whose vocabulary is known."""
        assert config.logging.plan_hardware is not None, "nothing to compare with"
        self._name = config.logging.plan_hardware
        self._workload = Workload.of(config, world_size)
        self._times: list[float] = []
        self._steps = 0

    def step(self, metrics: StepMetrics) -> None:
        """Take a step in; the last one that counts logs the comparison."""
        if self._steps == STEPS:
            return
        self._steps += 1
        if self._steps > 1:
            self._times.append(metrics.step_time_s)
        if self._steps == STEPS:
            LOGGER.info(self._line(metrics))

    def _line(self, metrics: StepMetrics) -> str:
        machine, workload = hardware(self._name), self._workload
        # Of the batch that these steps had, which may still grow.
        workload = workload.replace(microbatches=metrics.batch_size // (workload.micro_batch * workload.dp))
        planned = StepModel(workload, machine, Constants()).step().total
        measured = statistics.median(self._times)
        memory = peak_memory(workload, machine).total
        return (
            f"plan for {self._name}: a step of {planned:.3g} s planned, {measured:.3g} s measured "
            f"({measured / planned - 1:+.0%}); {memory / 1e9:.3g} GB planned, "
            f"{metrics.peak_memory_bytes / 1e9:.3g} GB measured ({metrics.peak_memory_bytes / memory - 1:+.0%})"
        )
