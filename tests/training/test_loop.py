# SPDX-License-Identifier: Apache-2.0
import gc
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatron_core.training.loop import Ending, train, validate_at_end
from megatron_core.training.metrics import read_metrics
from megatron_core.training.profile import ProfileWindow
from megatron_core.training.saver import Saver
from megatron_core.training.session import begin, open_report
from megatron_core.training.signals import SignalFlag
from megatron_core.training.stop import StopRequests
from tests.e2e.proof import FAMILIES, ready

FLAGS = f"{FAMILIES['gpt2']} --micro-batch-size 8 --num-layers 1 --eval-iters 1"


def loop(folder: Path, flags: str, started: float | None = None) -> tuple[Ending, list[dict[str, Any]]]:
    """How it ended, and the lines of metrics.jsonl."""
    config, ctx, data = ready(0, 1, f"{FLAGS} {flags} --save {folder}")
    begun = begin(config, ctx, data)
    started = time.monotonic() if started is None else started
    requests = StopRequests(config.training, SignalFlag(enabled=False), rank=0, started=started)
    saver = Saver(begun.start, begun.state, ctx, dist.HashStore(), requests)
    report = open_report(config, ctx)
    ending = train(
        begun.run, begun.state, saver, report, ProfileWindow(config.training, str(folder), 0, cuda=False), requests
    )
    ending = validate_at_end(ending, report, requests)
    report.close()
    return ending, read_metrics(folder / "metrics.jsonl")


def steps_and_sets(lines: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(line["step"], line.get("validation_set", line.get("evaluation", "training"))) for line in lines]


def test_validation_in_between_and_once_at_the_end(tmp_path: Path) -> None:
    ending, lines = loop(tmp_path, "--train-iters 4 --eval-interval 2")
    assert (ending.reason, ending.state.step, ending.state.consumed_samples) == ("finished", 4, 32)
    assert steps_and_sets(lines) == [
        (1, "training"),
        (2, "training"),
        (2, "validation"),
        (3, "training"),
        (4, "training"),
        (4, "validation"),
        (4, "test"),
    ]


def test_tasks_follow_the_validation_sets(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "1 2 3"}\n')
    _, lines = loop(tmp_path, f"--train-iters 3 --eval-interval 2 --eval-tasks lambada={tmp_path / 'rows.jsonl'}")
    both = ("validation", "lambada")
    assert steps_and_sets(lines) == [
        (1, "training"),
        (2, "training"),
        *((2, name) for name in both),
        (3, "training"),
        *((3, name) for name in both),
        (3, "test"),
    ]


def test_a_run_that_validates_at_the_end_alone(tmp_path: Path) -> None:
    _, lines = loop(tmp_path, "--train-iters 2")
    assert steps_and_sets(lines) == [(1, "training"), (2, "training"), (2, "validation"), (2, "test")]


def test_exit_interval(tmp_path: Path) -> None:
    ending, _ = loop(tmp_path, "--train-iters 9 --exit-interval 4 --eval-iters 0")
    assert (ending.reason, ending.state.step) == ("exit_interval 4", 4)


def test_exit_duration_counts_from_the_start_given(tmp_path: Path) -> None:
    flags = "--train-iters 3 --exit-duration-in-mins 10 --eval-iters 0"
    assert loop(tmp_path, flags)[0].reason == "finished"
    ending, _ = loop(tmp_path, flags, started=time.monotonic() - 601)
    assert (ending.reason, ending.state.step) == ("exit_duration_in_mins 10.0", 1)


@pytest.mark.parametrize(("interval", "collections"), [(0, 1), (2, 3)])
def test_manual_garbage_collection(
    interval: int, collections: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Automatic collection goes off; one collection before the first step and one every interval."""
    called: list[str] = []
    monkeypatch.setattr(gc, "disable", lambda: called.append("disable"))
    monkeypatch.setattr(gc, "collect", lambda: called.append("collect"))
    loop(tmp_path, f"--train-iters 5 --eval-iters 0 --manual-gc --manual-gc-interval {interval}")
    assert called == ["disable"] + ["collect"] * collections


def test_phases_are_logged_where_asked_for(tmp_path: Path) -> None:
    _, lines = loop(tmp_path, "--train-iters 1 --eval-iters 0 --timing-log-level 1")
    assert {"batch", "forward-backward", "gradient-reduction", "optimizer"} <= lines[0]["timers"].keys()
    assert sum(lines[0]["timers"].values()) <= lines[0]["step_time_s"] * 1.01


def test_utilisation_needs_a_peak(tmp_path: Path) -> None:
    _, lines = loop(tmp_path, "--train-iters 1 --eval-iters 0 --device-peak-tflops 0.5")
    assert lines[0]["mfu"] == pytest.approx(lines[0]["tflops_per_device"] / 0.5)
