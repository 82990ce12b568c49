# SPDX-License-Identifier: Apache-2.0
"""After its first steps a run says what the planner expected of them."""

import dataclasses
import logging
import shlex

import pytest

from megatron_core.config.cli import parse
from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError
from megatron_core.training.batch_schedule import RunLength
from megatron_core.training.plan_check import STEPS, PlanCheck, check_plan_hardware
from megatron_core.training.report import Report
from tests.training.test_report import metrics

WORDS = shlex.split(
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 256 --max-position-embeddings "
    "256 --vocab-size 1024 --mock-data --lr 1e-3 --train-iters 20 --micro-batch-size 2 "
    "--global-batch-size 64 --bf16"
)


def config(*words: str) -> RunConfig:
    return parse([*WORDS, *words], 8).config


def test_one_line_after_the_first_steps(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    check = PlanCheck(config("--plan-hardware", "dgx-a100-80"), 8)
    for step in range(1, STEPS + 5):
        slow = 60.0 if step == 1 else 0.5
        check.step(metrics(step, step_time_s=slow, batch_size=64, peak_memory_bytes=5 * 10**9))
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("plan for dgx-a100-80: a step of 0.0")
    assert "0.5 s measured" in line and "5 GB measured" in line


def test_the_plan_is_of_the_batch_that_these_steps_had(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    for batch in (16, 64):
        check = PlanCheck(config("--plan-hardware", "dgx-a100-80"), 8)
        for step in range(1, STEPS + 1):
            check.step(metrics(step, batch_size=batch))
    small, large = (float(record.message.split()[6]) for record in caplog.records)
    assert small < large


def test_unknown_hardware_and_a_precision_that_it_lacks_are_told_before_the_run() -> None:
    check_plan_hardware(config())
    with pytest.raises(ConfigError, match="no hardware 'moon'"):
        check_plan_hardware(config("--plan-hardware", "moon"))
    with pytest.raises(ConfigError, match="no bf16"):
        check_plan_hardware(config("--plan-hardware", "dgx-2"))
    without = config("--plan-hardware", "dgx-a100-80")
    assert dataclasses.replace(without.logging, plan_hardware=None) == config().logging


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_of_a_run_compares(rank: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    run = config("--plan-hardware", "dgx-a100-80")
    length = RunLength(steps=20, samples=1280)
    report = Report(
        run.logging, length, save=None, rank=rank, world_size=8, run_config={}, plan=PlanCheck(run, world_size=8)
    )
    for step in range(1, 21):
        report.step(metrics(step, batch_size=64))
    report.close()
    assert [record.message[:8] for record in caplog.records if record.message.startswith("plan")] == ["plan for"] * (
        rank == 0
    )
