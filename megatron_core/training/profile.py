# SPDX-License-Identifier: Apache-2.0
"""A window of steps under torch's profiler, written as a Chrome trace to <save>/profile/rank{r}.json.

Open the file in https://ui.perfetto.dev or chrome://tracing. Steps `profile_step_start` up to, not including,
`profile_step_end` are recorded, on `profile_ranks` alone.
"""

import logging
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from megatron_core.config.training import TrainingConfig
from megatron_core.errors import ConfigError
from megatron_core.training.console import LOGGER_NAME

LOGGER = logging.getLogger(LOGGER_NAME)


class ProfileWindow:
    """Starts and stops the profiler around the configured steps; does nothing where none were asked for."""

    def __init__(self, training: TrainingConfig, save: str | None, rank: int, *, cuda: bool) -> None:
        """Raises ConfigError for --profile without a directory to write to."""
        if training.profile and save is None:
            raise ConfigError("--profile writes its traces to <save>/profile: set --save.")
        self._steps = range(training.profile_step_start, training.profile_step_end)
        self._path: Path | None = None
        if training.profile and save is not None and rank in training.profile_ranks:
            self._path = Path(save) / "profile" / f"rank{rank}.json"
        self._activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
        self._profiler: profile | None = None

    def before_step(self, step: int) -> None:
        """Call before step number `step` starts (a run resumed within the window records the rest of it)."""
        if self._path is not None and self._profiler is None and step in self._steps:
            self._profiler = profile(activities=self._activities)
            self._profiler.start()

    def after_step(self, step: int) -> None:
        """Call when step number `step` is over."""
        if step + 1 >= self._steps.stop:
            self.close()

    def close(self) -> None:
        """Write what was recorded, also when the run ends within the window."""
        if self._profiler is None or self._path is None:
            return
        self._profiler.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._path))
        LOGGER.info("profile of steps %d to %d in %s", self._steps.start, self._steps.stop - 1, self._path)
        self._profiler, self._path = None, None
