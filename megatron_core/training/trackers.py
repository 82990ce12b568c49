# SPDX-License-Identifier: Apache-2.0
"""Which numbers go to TensorBoard and Weights & Biases, under which names.

Names are the keys of metrics.jsonl. Both tools get the same numbers; the `log_*_to_tensorboard` switches add to them.
"""

import importlib.util
from collections.abc import Mapping
from typing import Any, Protocol

from megatron_core.config.logging import LoggingConfig
from megatron_core.data.build import DEFAULT_SET
from megatron_core.errors import ConfigError
from megatron_core.training.metrics import EvaluationMetrics, StepMetrics, ValidationMetrics
from megatron_core.training.save_directory import check_save_directory
from megatron_core.training.tensorboard_tracker import TensorBoardTracker
from megatron_core.training.wandb_tracker import WandbTracker


class Tracker(Protocol):
    """An outside record of the run."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record scalars of a step."""

    def close(self) -> None:
        """Hand over everything that is still held back."""


def step_scalars(metrics: StepMetrics, config: LoggingConfig, world_size: int) -> dict[str, float]:
    """Numbers of a training step by name."""
    names = ["loss", "grad_norm", "lr", "batch_size", "consumed_samples", "consumed_tokens", "step_time_s"]
    names += ["tokens_per_s", "tflops_per_device", "mfu", "params_norm", "num_zeros"]
    if config.log_loss_scale_to_tensorboard:
        names.append("loss_scale")
    if config.log_memory_to_tensorboard:
        names.append("peak_memory_bytes")
    scalars = {name: float(getattr(metrics, name)) for name in names if getattr(metrics, name) is not None}
    if config.log_memory_to_tensorboard:
        scalars.update({f"memory_bytes/{category}": float(nbytes) for category, nbytes in metrics.memory_bytes.items()})
    if config.log_world_size_to_tensorboard:
        scalars["world_size"] = float(world_size)
    if config.log_timers_to_tensorboard:
        scalars.update({f"timers/{name}": seconds for name, seconds in metrics.timers.items()})
        scalars.update({f"exposed_comm_s/{axis}": seconds for axis, seconds in (metrics.exposed_comm_s or {}).items()})
    return scalars


def validation_scalars(metrics: ValidationMetrics, config: LoggingConfig) -> dict[str, float]:
    """Numbers of a validation pass by name; sets other than the main one follow their name."""
    suffix = "" if metrics.validation_set == DEFAULT_SET else f"/{metrics.validation_set}"
    scalars = {f"validation_loss{suffix}": metrics.validation_loss}
    if config.log_validation_ppl_to_tensorboard:
        scalars[f"validation_perplexity{suffix}"] = metrics.perplexity
    return scalars


def evaluation_scalars(metrics: EvaluationMetrics) -> dict[str, float]:
    """The scores of a task by name."""
    return {f"evaluation/{metrics.evaluation}/{name}": value for name, value in metrics.scores.items()}


def check_trackers(config: LoggingConfig) -> None:
    """Raise ConfigError for a tracker that is not installed or whose directory cannot be made.

    Every rank calls, before anything is started: were rank 0 alone to find it later, the others would fail around it.
    """
    if config.tensorboard_dir is not None:
        _check_installed("tensorboard", "--tensorboard-dir")
        check_save_directory(config.tensorboard_dir, "--tensorboard-dir")
    if config.wandb_project:
        _check_installed("wandb", "--wandb-project")
        check_save_directory(config.wandb_save_dir or None, "--wandb-save-dir")


def _check_installed(package: str, flag: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{flag} needs the package {package}, which is not installed: pip install {package}, or drop the flag "
            "(metrics.jsonl has the same numbers)."
        )


def open_trackers(config: LoggingConfig, save: str | None, run_config: Mapping[str, Any]) -> tuple[Tracker, ...]:
    """The trackers asked for, to be opened on rank 0 alone.

    run_config: the resolved configuration, shown beside the curves. Raises ConfigError for one that is not installed.
    """
    trackers: list[Tracker] = []
    if config.tensorboard_dir is not None:
        trackers.append(TensorBoardTracker(config.tensorboard_dir, config.tensorboard_queue_size))
    if config.wandb_project:
        trackers.append(WandbTracker(config, save, run_config))
    return tuple(trackers)
