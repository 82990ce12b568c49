# SPDX-License-Identifier: Apache-2.0
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from megatron_core.config.logging import LoggingConfig
from megatron_core.errors import ConfigError
from megatron_core.training.metrics import EvaluationMetrics, StepMetrics, ValidationMetrics
from megatron_core.training.trackers import (
    check_trackers,
    evaluation_scalars,
    open_trackers,
    step_scalars,
    validation_scalars,
)

STEP: dict[str, Any] = {
    "step": 7,
    "loss": 2.5,
    "grad_norm": 1.0,
    "lr": 1e-3,
    "loss_scale": 1.0,
    "batch_size": 8,
    "consumed_samples": 56,
    "consumed_tokens": 560,
    "step_time_s": 0.5,
    "tokens_per_s": 160.0,
    "tflops_per_device": 0.1,
    "mfu": None,
    "peak_memory_bytes": 10**9,
    "skipped": False,
    "timers": {"optimizer": 0.1},
    "exposed_comm_s": {"dp": 0.2},
    "memory_bytes": {"total": 10**8},
}


def test_numbers_by_default() -> None:
    scalars = step_scalars(StepMetrics(**STEP), LoggingConfig(), world_size=4)
    assert scalars["loss"] == 2.5
    assert scalars["loss_scale"] == 1.0
    assert not {"mfu", "params_norm", "num_zeros", "peak_memory_bytes", "world_size", "timers/optimizer"} & set(scalars)
    assert not {"exposed_comm_s/dp", "memory_bytes/total"} & set(scalars)


def test_switches_add_and_remove() -> None:
    config = LoggingConfig(
        log_loss_scale_to_tensorboard=False,
        log_memory_to_tensorboard=True,
        log_world_size_to_tensorboard=True,
        log_timers_to_tensorboard=True,
    )
    scalars = step_scalars(StepMetrics(**{**STEP, "mfu": 0.4, "num_zeros": 3}), config, world_size=4)
    assert "loss_scale" not in scalars
    assert {
        name: scalars[name] for name in ("peak_memory_bytes", "world_size", "timers/optimizer", "mfu", "num_zeros")
    } == {
        "peak_memory_bytes": 1e9,
        "world_size": 4.0,
        "timers/optimizer": 0.1,
        "mfu": 0.4,
        "num_zeros": 3.0,
    }
    assert (scalars["exposed_comm_s/dp"], scalars["memory_bytes/total"]) == (0.2, 1e8)


def test_validation_sets_keep_apart() -> None:
    main = ValidationMetrics(
        step=1,
        consumed_samples=1,
        consumed_tokens=1,
        validation_loss=0.0,
        validation_tokens=9,
        validation_set="validation",
    )
    assert validation_scalars(main, LoggingConfig()) == {"validation_loss": 0.0}
    wiki = ValidationMetrics(**{**main.record(), "validation_set": "wiki"})
    with_perplexity = LoggingConfig(log_validation_ppl_to_tensorboard=True)
    assert validation_scalars(wiki, with_perplexity) == {"validation_loss/wiki": 0.0, "validation_perplexity/wiki": 1.0}


def test_tasks_keep_apart() -> None:
    found = EvaluationMetrics(
        step=10,
        consumed_samples=40,
        consumed_tokens=640,
        evaluation="piqa",
        evaluation_questions=9,
        scores={"acc": 0.5},
        standard_errors={"acc": 0.1667},
    )
    assert evaluation_scalars(found) == {"evaluation/piqa/acc": 0.5}


def test_no_tracker_unless_asked_for() -> None:
    assert open_trackers(LoggingConfig(), None, {}) == ()


def test_a_directory_that_cannot_be_made_is_told_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: package)
    check_trackers(LoggingConfig())
    check_trackers(LoggingConfig(tensorboard_dir=str(tmp_path / "new"), wandb_project="gpt"))
    (tmp_path / "file").touch()
    file = str(tmp_path / "file")
    with pytest.raises(ConfigError, match=r"--tensorboard-dir .* is a file"):
        check_trackers(LoggingConfig(tensorboard_dir=file))
    with pytest.raises(ConfigError, match=r"--wandb-save-dir .* is a file"):
        check_trackers(LoggingConfig(wandb_project="gpt", wandb_save_dir=file))


@pytest.mark.parametrize(
    ("config", "package"),
    [(LoggingConfig(tensorboard_dir="events"), "tensorboard"), (LoggingConfig(wandb_project="gpt"), "wandb")],
)
def test_a_missing_package_is_told_before_the_start(
    config: LoggingConfig, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        check_trackers(config)
