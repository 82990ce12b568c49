# SPDX-License-Identifier: Apache-2.0
"""Steps that go wrong in whole runs: whatever leaves a batch out leaves the same weights, to the bit."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.data_parallel.grad_reducer import GradReducer
from megatron_core.pipeline.runtime import PipelineResult, PipelineRuntime
from megatron_core.training.metrics import read_metrics
from megatron_core.training.microbatches import MicrobatchSource
from megatron_core.training.pretrain import pretrain
from tests.e2e.test_command_line import MOCK, ending

STEPS = 14
RUN = f"{MOCK.replace('dropout 0', 'dropout 0.1')} --train-iters {STEPS} --save-interval 3"
Spoil = Callable[[Collection[int]], None]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def step_now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the step whose batch was handed out last."""
    now = [0]
    give = MicrobatchSource.step

    def noted(source: MicrobatchSource, plan: Any, dropout: tuple[int, int] | None) -> Any:
        now[0] = 0 if dropout is None else dropout[1] + 1
        return give(source, plan, dropout)

    monkeypatch.setattr(MicrobatchSource, "step", noted)
    return now


@pytest.fixture
def spoil_gradient(step_now: list[int], monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Make a gradient of these steps no number, each time that they are computed."""
    finish = GradReducer.finish

    def spoil(steps: Collection[int]) -> None:
        def finished(reducer: GradReducer) -> None:
            finish(reducer)
            if step_now[0] in steps:
                reducer.buckets[0].grads[0] = torch.nan

        monkeypatch.setattr(GradReducer, "finish", finished)

    return spoil


@pytest.fixture
def spoil_loss(step_now: list[int], monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Make the loss of these steps ten times what it is."""
    run = PipelineRuntime.run

    def spoil(steps: Collection[int]) -> None:
        def ran(runtime: PipelineRuntime, *arguments: Any, **options: Any) -> PipelineResult:
            result = run(runtime, *arguments, **options)
            return replace(result, loss_sum=10 * result.loss_sum) if step_now[0] in steps else result

        monkeypatch.setattr(PipelineRuntime, "run", ran)

    return spoil


def trained(save: Path, flags: str) -> bytes:
    """The tensors at the end of a run: weights and moments."""
    assert pretrain(f"{RUN} --save {save} {flags}".split(), time.monotonic()) == 0
    assert ending(save)["step"] == STEPS
    return (save / f"step_{STEPS:08d}" / "rank_00000.safetensors").read_bytes()


def steps_trained(save: Path) -> list[int]:
    return [line["step"] for line in read_metrics(save / "metrics.jsonl") if not line.get("skipped", True)]


def test_a_gradient_that_is_no_number(tmp_path: Path, spoil_gradient: Spoil, capfd: pytest.CaptureFixture[str]) -> None:
    expected = trained(tmp_path / "skipped", "--iterations-to-skip 5")
    assert steps_trained(tmp_path / "skipped") == [1, 2, 3, 4, *range(6, STEPS + 1)]
    spoil_gradient({5})
    for policy in ("skip", "rollback"):
        capfd.readouterr()
        assert trained(tmp_path / policy, f"--nan-policy {policy}") == expected
        assert "step 5: loss " in (said := "".join(capfd.readouterr())) and "samples 16 to 19" in said
    assert steps_trained(tmp_path / "rollback") == [1, 2, 3, 4, 4, *range(6, STEPS + 1)], "from step 3 on again"
    assert pretrain(f"{RUN} --save {tmp_path / 'stop'}".split(), time.monotonic()) == 1
    said = "".join(capfd.readouterr())
    assert said.count("step 5: loss ") == 1 and "samples 16 to 19" in said and "Traceback" not in said
    assert steps_trained(tmp_path / "stop") == [1, 2, 3, 4]


def test_a_gradient_that_is_no_number_where_updates_are_late(tmp_path: Path, spoil_gradient: Spoil) -> None:
    """One update is on its way when the fault is found, and when the run goes back."""
    late = "--optimizer-cpu-offload --offload-gradients device --optimizer-delayed-update-start 2"
    expected = trained(tmp_path / "skipped", f"--iterations-to-skip 5 {late}")
    spoil_gradient({5})
    for policy in ("skip", "rollback"):
        assert trained(tmp_path / policy, f"--nan-policy {policy} {late}") == expected


def test_a_loss_far_above_the_usual(tmp_path: Path, spoil_loss: Spoil) -> None:
    expected = trained(tmp_path / "skipped", "--iterations-to-skip 12")
    spoil_loss({3, 12})  # two losses say too little for the third to be a spike
    for policy in ("skip", "rollback"):
        assert trained(tmp_path / policy, f"--loss-spike-policy {policy} --loss-spike-factor 2") == expected
    assert pretrain(f"{RUN} --save {tmp_path / 'stop'} --loss-spike-policy stop".split(), time.monotonic()) == 1
    assert steps_trained(tmp_path / "stop") == list(range(1, 12))


def test_several_faults_after_one_checkpoint(tmp_path: Path, spoil_gradient: Spoil) -> None:
    expected = trained(tmp_path / "skipped", "--iterations-to-skip 4-5 8")
    spoil_gradient({4, 5, 8})
    assert trained(tmp_path / "rollback", "--nan-policy rollback") == expected


def test_a_roll_back_needs_a_checkpoint(
    tmp_path: Path, spoil_gradient: Spoil, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil_gradient({2})
    assert pretrain(f"{RUN} --save {tmp_path} --nan-policy rollback".split(), time.monotonic()) == 1
    said = "".join(capfd.readouterr())
    assert "step 2: loss " in said and "samples 4 to 7" in said and "Traceback" not in said


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_weights_that_are_broken_for_good_end_the_run(
    policy: str, tmp_path: Path, spoil_gradient: Spoil, capfd: pytest.CaptureFixture[str]
) -> None:
    spoil_gradient(range(7, 1000))
    flags = f"{RUN} --train-iters 100 --save {tmp_path} --nan-policy {policy}"
    assert pretrain(flags.split(), time.monotonic()) == 1
    assert "step 17: loss " in (said := "".join(capfd.readouterr())) and "fault 11 in a row" in said
