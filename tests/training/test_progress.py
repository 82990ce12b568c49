# SPDX-License-Identifier: Apache-2.0
import logging
import math
from typing import Any

import pytest

from megatron_core.config.logging import LoggingConfig
from megatron_core.training.batch_schedule import RunLength
from megatron_core.training.metrics import EvaluationMetrics, StepMetrics, ValidationMetrics
from megatron_core.training.progress import (
    Progress,
    clock,
    evaluation_line,
    quantity,
    score_text,
    step_line,
    timer_line,
    validation_line,
)
from megatron_core.training.stragglers import Stragglers


def metrics(step: int = 120, **changes: Any) -> StepMetrics:
    values: dict[str, Any] = {
        "step": step,
        "loss": 2.31449,
        "grad_norm": 0.912345,
        "lr": 6e-4,
        "loss_scale": 1.0,
        "batch_size": 32,
        "consumed_samples": 32 * step,
        "consumed_tokens": 32 * 1024 * step,
        "step_time_s": 0.795,
        "tokens_per_s": 41_218.0,
        "tflops_per_device": 12.34,
        "mfu": None,
        "peak_memory_bytes": 1_234_567_890,
        "skipped": False,
    }
    return StepMetrics(**{**values, **changes})


def test_line_of_a_step() -> None:
    assert step_line(metrics(), 1000, 3723.4) == (
        "step 120/1000 | loss 2.3145 | grad 0.912 | lr 6.00e-04 | batch 32 | 0.795 s | 41.2 ktok/s | mem 1.23 GB | "
        "eta 1:02:03"
    )


def test_line_of_a_skipped_fp16_step_with_everything_on() -> None:
    full = metrics(loss_scale=65536.0, skipped=True, grad_norm=math.inf, mfu=0.4312, params_norm=123.4, num_zeros=7)
    assert step_line(full, 1000, 59.6, throughput=True) == (
        "step 120/1000 | loss 2.3145 | grad inf | lr 6.00e-04 | scale 65536 | skipped | params 123.4 | "
        "zeros 7 | batch 32 | 0.795 s | 41.2 ktok/s | 12.3 TFLOP/s | mfu 0.43 | mem 1.23 GB | eta 0:01:00"
    )


def test_other_lines() -> None:
    assert (
        timer_line({"forward-backward": 0.5, "optimizer": 1.25}) == "  optimizer 1250.0 ms | forward-backward 500.0 ms"
    )
    evaluated = ValidationMetrics(
        step=10,
        consumed_samples=1,
        consumed_tokens=1,
        validation_loss=0.0,
        validation_tokens=640,
        validation_set="wiki",
    )
    assert validation_line(evaluated) == "validation at step 10 | wiki | loss 0.0000 | ppl 1 | 640 tokens"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (59.5, "0:01:00"), (3723, "1:02:03"), (2 * 86400 + 11045, "2d 03:04:05")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.50 B"),
        (999.0, "999 B"),
        (1000.0, "1.00 kB"),
        (41_250.0, "41.2 kB"),
        (3.2e11, "320 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_quantity(value: float, text: str) -> None:
    assert quantity(value, "B") == text


def logged_steps(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [int(message.split()[1].split("/")[0]) for message in caplog.messages if message.startswith("step")]


def test_logs_the_interval_and_both_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    progress = Progress(LoggingConfig(log_interval=4), RunLength(steps=11, samples=352))
    for step in range(3, 12):
        progress.step(metrics(step))
    assert logged_steps(caplog) == [3, 4, 8, 11]
    assert caplog.messages[-1].endswith("eta 0:00:00")


def test_phases_follow_on_their_own_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    Progress(LoggingConfig(), RunLength(steps=11, samples=352)).step(metrics(1, timers={"optimizer": 0.5}))
    assert caplog.messages[1] == "  optimizer 500.0 ms"


def test_memory_follows_whenever_it_was_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    progress = Progress(LoggingConfig(), RunLength(steps=11, samples=352))
    progress.step(metrics(1))
    progress.step(metrics(2, memory_bytes={"parameters": 2_000_000, "total": 3_500_000}))
    assert caplog.messages[1] == "  live parameters 2.00 MB | total 3.50 MB"


def test_eta_is_remaining_samples_at_recent_speed() -> None:
    progress = Progress(LoggingConfig(), RunLength(steps=100, samples=1000), window=2)
    progress.step(metrics(1, batch_size=10, step_time_s=60.0))
    assert progress.eta_s(consumed_samples=990) == 60.0
    progress.step(metrics(2, batch_size=10, step_time_s=1.0))
    assert progress.eta_s(consumed_samples=500) == 50.0, "the first step of a process is no measure"
    for step in (3, 4):
        progress.step(metrics(step, batch_size=20, step_time_s=1.0))
    assert progress.eta_s(consumed_samples=500) == 25.0, "only the window counts, in samples and not in steps"


def test_who_holds_up_the_others() -> None:
    found = Stragglers(slowest_rank=5, slowest_rank_s=1.25, fastest_rank=0, fastest_rank_s=0.9)
    line = step_line(metrics(stragglers=found), 1000, 60.0)
    assert "slowest rank 5 busy 1.25 s, fastest 0 0.9 s" in line


def test_the_scores_of_a_task() -> None:
    found = EvaluationMetrics(
        step=10,
        consumed_samples=40,
        consumed_tokens=640,
        evaluation="piqa",
        evaluation_questions=9,
        scores={"acc": 0.5},
        standard_errors={"acc": 0.1667},
    )
    assert evaluation_line(found) == "evaluation at step 10 | piqa | acc 0.5000 +- 0.17 | 9 questions"
    assert score_text(29842909335439224.0) == "2.984e+16"
