# SPDX-License-Identifier: Apache-2.0
"""One door for what happened: a step's facts go to metrics.jsonl, the console and the trackers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_core.config.logging import LoggingConfig
from megatron_core.training.batch_schedule import RunLength
from megatron_core.training.metrics import (
    METRICS_FILE,
    EvaluationMetrics,
    MetricsWriter,
    StepMetrics,
    ValidationMetrics,
)
from megatron_core.training.plan_check import PlanCheck
from megatron_core.training.progress import LOGGER, Progress, evaluation_line, validation_line
from megatron_core.training.trackers import Tracker, evaluation_scalars, open_trackers, step_scalars, validation_scalars


class Report:
    """Open it on every rank: all but rank 0 stay silent."""

    def __init__(
        self,
        config: LoggingConfig,
        length: RunLength,
        *,
        save: str | None,
        rank: int,
        world_size: int,
        run_config: Mapping[str, Any],
        plan: PlanCheck | None = None,
    ) -> None:
        """run_config: the resolved configuration as plain data, for the trackers. Raises ConfigError (see there)."""
        self._config = config
        self._world_size = world_size
        self._speaks = rank == 0
        self._plan = plan
        self.last_step = 0
        """Number of the last step reported, on every rank."""
        self._writer = MetricsWriter(Path(save) / METRICS_FILE if save is not None and rank == 0 else None)
        self._progress = Progress(config, length)
        self._trackers: list[Tracker] = list(open_trackers(config, save, run_config)) if rank == 0 else []

    def step(self, metrics: StepMetrics) -> None:
        """Report a training step."""
        self.last_step = metrics.step
        if not self._speaks:
            return
        self._writer.write(metrics)
        self._progress.step(metrics)
        if self._plan is not None:
            self._plan.step(metrics)
        if metrics.step % self._config.tensorboard_log_interval == 0:
            self._track(step_scalars(metrics, self._config, self._world_size), metrics.step)

    def validation(self, metrics: ValidationMetrics) -> None:
        """Report a validation pass."""
        if not self._speaks:
            return
        self._writer.write(metrics)
        LOGGER.info(validation_line(metrics))
        self._track(validation_scalars(metrics, self._config), metrics.step)

    def evaluation(self, metrics: EvaluationMetrics) -> None:
        """Report the scores of a task."""
        if not self._speaks:
            return
        self._writer.write(metrics)
        LOGGER.info(evaluation_line(metrics))
        self._track(evaluation_scalars(metrics), metrics.step)

    def close(self) -> None:
        """Finish all files; the report is not used after."""
        self._writer.close()
        for tracker in self._trackers:
            try:
                tracker.close()
            except OSError as error:
                LOGGER.error("the end of the run is not tracked: %s", error)

    def _track(self, values: Mapping[str, float], step: int) -> None:
        """Hand numbers to each tracker; one whose files cannot be written is given up, and training goes on."""
        for tracker in list(self._trackers):
            try:
                tracker.log(values, step)
            except OSError as error:
                LOGGER.error("from step %d on the run is not tracked any more by one of its trackers: %s", step, error)
                self._trackers.remove(tracker)
