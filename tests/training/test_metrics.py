# SPDX-License-Identifier: Apache-2.0
import json
import math
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatron_core.training.metrics import (
    EvaluationMetrics,
    MetricsWriter,
    StepMetrics,
    ValidationMetrics,
    read_metrics,
)

# Written out, not taken from the class: other programs read these names.
CONTRACT = [
    "step",
    "loss",
    "grad_norm",
    "lr",
    "loss_scale",
    "batch_size",
    "consumed_samples",
    "consumed_tokens",
    "step_time_s",
    "tokens_per_s",
    "tflops_per_device",
    "mfu",
    "peak_memory_bytes",
    "skipped",
]


def metrics(step: int = 1, **changes: Any) -> StepMetrics:
    values: dict[str, Any] = {
        "step": step,
        "loss": 10.123456789012345,
        "grad_norm": 1 / 3,
        "lr": 6e-4,
        "loss_scale": 65536.0,
        "batch_size": 8,
        "consumed_samples": 8 * step,
        "consumed_tokens": 512 * step,
        "step_time_s": 0.1 + 0.2,
        "tokens_per_s": 1e5 / 3,
        "tflops_per_device": 1.5,
        "mfu": None,
        "peak_memory_bytes": 2**40,
        "skipped": False,
    }
    return StepMetrics(**{**values, **changes})


def read_back(tmp_path: Path, *records: StepMetrics | ValidationMetrics) -> list[dict[str, Any]]:
    path = tmp_path / "run" / "metrics.jsonl"
    writer = MetricsWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_keys_are_the_contract_s_and_floats_keep_every_bit(tmp_path: Path) -> None:
    written = metrics(step=3)
    (line,) = read_back(tmp_path, written)
    assert list(line) == CONTRACT
    assert line == written.record()
    assert line["step_time_s"] == 0.30000000000000004
    assert line["mfu"] is None


def test_further_keys_follow_where_asked_for(tmp_path: Path) -> None:
    (line,) = read_back(tmp_path, metrics(params_norm=12.5, num_zeros=0, timers={"forward-backward": 0.25}))
    assert list(line) == [*CONTRACT, "params_norm", "num_zeros", "timers"]
    assert line["num_zeros"] == 0
    assert line["timers"] == {"forward-backward": 0.25}


def test_what_json_has_no_word_for_is_a_string_that_float_reads(tmp_path: Path) -> None:
    (line,) = read_back(tmp_path, metrics(loss=math.nan, grad_norm=math.inf, timers={"a": -math.inf}))
    assert (line["loss"], line["grad_norm"], line["timers"]) == ("NaN", "Infinity", {"a": "-Infinity"})
    assert float(str(line["grad_norm"])) == math.inf


def test_validation_line(tmp_path: Path) -> None:
    evaluated = ValidationMetrics(
        step=10,
        consumed_samples=80,
        consumed_tokens=5120,
        validation_loss=2.0,
        validation_tokens=640,
        validation_set="validation",
    )
    (line,) = read_back(tmp_path, evaluated)
    assert line["validation_loss"] == 2.0
    assert line["validation_set"] == "validation"
    assert "loss" not in line
    assert evaluated.perplexity == pytest.approx(math.e**2)
    assert ValidationMetrics(**{**line, "validation_loss": 1e4}).perplexity == math.inf


def test_each_line_is_in_the_file_before_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    for step in (1, 2, 3):
        writer.write(metrics(step))
        assert [record["step"] for record in read_metrics(path)] == list(range(1, step + 1))


def test_a_resumed_run_appends_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n{"step":2,"lo')
    writer = MetricsWriter(path)
    writer.write(metrics(step=2))
    writer.close()
    assert [record["step"] for record in read_metrics(path)] == [1, 2]
    assert path.read_bytes().count(b"\n") == 3


def test_a_disk_that_fills_up_costs_lines_and_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(metrics(step=1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
    try:
        for step in (2, 3, 4):
            writer.write(metrics(step))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caplog.messages) == 1 and f"cannot write {path}" in caplog.text
    writer.write(metrics(step=5))
    assert [record["step"] for record in read_metrics(path)] == [1, 5]


def test_a_directory_removed_under_a_run_is_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write(metrics(step=1))
    shutil.rmtree(tmp_path / "run")
    writer.write(metrics(step=2))
    assert [record["step"] for record in read_metrics(path)] == [2]
    assert f"{path} is gone" in caplog.text


def test_other_ranks_write_nothing() -> None:
    writer = MetricsWriter(None)
    writer.write(metrics())
    writer.close()


def test_line_of_a_task(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl")
    writer.write(
        EvaluationMetrics(
            step=10,
            consumed_samples=40,
            consumed_tokens=640,
            evaluation="piqa",
            evaluation_questions=9,
            scores={"acc": 0.5},
            standard_errors={"acc": math.nan},
        )
    )
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line == {
        "step": 10,
        "consumed_samples": 40,
        "consumed_tokens": 640,
        "evaluation": "piqa",
        "evaluation_questions": 9,
        "acc": 0.5,
        "acc_standard_error": "NaN",
    }
