# SPDX-License-Identifier: Apache-2.0
import logging
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_core.config.logging import LoggingConfig
from megatron_core.training.batch_schedule import RunLength
from megatron_core.training.metrics import EvaluationMetrics, StepMetrics, ValidationMetrics, read_metrics
from megatron_core.training.report import Report
from megatron_core.training.tensorboard_tracker import TensorBoardTracker


def metrics(step: int, **changes: Any) -> StepMetrics:
    values: dict[str, Any] = {
        "step": step,
        "loss": 2.0 / step,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "loss_scale": 1.0,
        "batch_size": 8,
        "consumed_samples": 8 * step,
        "consumed_tokens": 80 * step,
        "step_time_s": 0.5,
        "tokens_per_s": 160.0,
        "tflops_per_device": 0.1,
        "mfu": None,
        "peak_memory_bytes": 10**9,
        "skipped": False,
    }
    return StepMetrics(**{**values, **changes})


def run(tmp_path: Path, rank: int) -> None:
    config = LoggingConfig(log_interval=2, tensorboard_dir=str(tmp_path / "tb"), tensorboard_log_interval=3)
    report = Report(config, RunLength(steps=6, samples=48), save=str(tmp_path), rank=rank, world_size=2, run_config={})
    for step in range(1, 7):
        report.step(metrics(step))
    report.validation(
        ValidationMetrics(
            step=6,
            consumed_samples=48,
            consumed_tokens=480,
            validation_loss=1.5,
            validation_tokens=10,
            validation_set="validation",
        )
    )
    report.evaluation(
        EvaluationMetrics(
            step=6,
            consumed_samples=48,
            consumed_tokens=480,
            evaluation="piqa",
            evaluation_questions=9,
            scores={"acc": 0.5},
            standard_errors={"acc": 0.1},
        )
    )
    report.close()


def test_every_step_in_the_file_and_the_intervals_elsewhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    run(tmp_path, rank=0)
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6, 6, 6]
    assert (records[-2]["validation_loss"], records[-1]["acc"]) == (1.5, 0.5)
    assert [line.split(" | ")[0] for line in caplog.messages] == [
        "step 1/6",
        "step 2/6",
        "step 4/6",
        "step 6/6",
        "validation at step 6",
        "evaluation at step 6",
    ]
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [3, 6]
    assert [event.value for event in events.Scalars("validation_loss")] == [1.5]
    assert [event.value for event in events.Scalars("evaluation/piqa/acc")] == [0.5]


def test_other_ranks_are_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    run(tmp_path, rank=1)
    assert list(tmp_path.iterdir()) == []
    assert caplog.messages == []


def test_a_tracker_that_cannot_write_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TensorBoard hands what its own thread met to whoever calls it next."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TensorBoardTracker, "log", refuse)
    run(tmp_path, rank=0)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 8
    assert [line for line in caplog.messages if "No space left" in line] == [
        "from step 3 on the run is not tracked any more by one of its trackers: [Errno 28] No space left on device"
    ]
