# SPDX-License-Identifier: Apache-2.0
"""When it saves and what it makes of failures; what is saved and how is tested with the manager."""

import logging
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from megatron_core.checkpoint.directory import steps_present
from megatron_core.checkpoint.manager import CheckpointManager
from megatron_core.errors import CheckpointError
from megatron_core.training.build import Run
from megatron_core.training.faults import FaultError
from megatron_core.training.saver import Saver
from megatron_core.training.session import begin
from megatron_core.training.state import RunState
from megatron_core.training.stop import StopRequests
from megatron_core.training.train_step import train_step
from tests.e2e.proof import FAMILIES, nobody, ready, whole_weights

FLAGS = f"{FAMILIES['gpt2']} --num-layers 1 --micro-batch-size 8"


def saver_of(flags: str) -> tuple[Saver, Run, RunState, StopRequests]:
    begun = begin(*ready(0, 1, f"{FLAGS} {flags}"))
    requests = nobody(begun.run)
    return Saver(begun.start, begun.state, begun.run.ctx, dist.HashStore(), requests), begun.run, begun.state, requests


def at(state: RunState, run: Run, step: int) -> RunState:
    while state.step < step:
        state, _ = train_step(run, state)
    return state


def no_space(*arguments: object, **options: object) -> None:
    raise CheckpointError("the checkpoint of step 2 was not saved: no space left")


@pytest.mark.parametrize("how", ["", "--no-async-save"])
def test_saves_when_due_and_at_the_end_but_never_twice_at_a_step(how: str, tmp_path: Path) -> None:
    saver, run, state, _ = saver_of(f"--save {tmp_path} --save-interval 2 {how}")
    for step, due in ((1, False), (2, True), (3, False), (4, True)):
        state = at(state, run, step)
        assert saver.after_step(run, state) == due
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*")} if how else {}
    assert saver.last(run, state) and saver.checkpoint_step == 4
    assert all(path.stat().st_mtime_ns == time for path, time in written.items())
    state = at(state, run, 5)
    assert saver.last(run, state) and saver.checkpoint_step == 5
    assert steps_present(tmp_path) == [2, 4, 5]


def test_without_an_interval_only_the_end_is_saved_and_without_a_directory_nothing(tmp_path: Path) -> None:
    saver, run, state, _ = saver_of(f"--save {tmp_path}")
    state = at(state, run, 1)
    assert not saver.after_step(run, state) and saver.last(run, state)
    assert steps_present(tmp_path) == [1]
    saver, run, state, _ = saver_of("")
    assert not saver.after_step(run, at(state, run, 1)) and not saver.last(run, state)
    assert saver.checkpoint_step is None


def test_a_run_that_goes_on_does_not_save_its_start_again(tmp_path: Path) -> None:
    saver, run, state, _ = saver_of(f"--save {tmp_path}")
    assert saver.last(run, at(state, run, 2))
    saver, run, state, _ = saver_of(f"--save {tmp_path} --load {tmp_path} --save-interval 2")
    assert state.step == 2 and saver.checkpoint_step == 2
    assert not saver.after_step(run, state) and saver.last(run, state)
    assert [path.name for path in tmp_path.glob("*/rank*")] == ["rank_00000.safetensors"]


@pytest.mark.parametrize(("policy", "stops"), [("", False), ("--stop-on-save-failure", True)])
@pytest.mark.parametrize("how", ["", "--no-async-save"])
def test_a_failed_save_is_said_and_ends_the_run_only_where_asked(
    policy: str,
    stops: bool,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    saver, run, state, requests = saver_of(f"--save {tmp_path} --save-interval 2 {policy} {how}")
    state = at(state, run, 2)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "megatron_core"):
        patch.setattr("megatron_core.checkpoint.manager.prepare", no_space)
        assert saver.after_step(run, state)
        saver.poll()
        assert "no space left" in caplog.text and requests.save_failed == stops
        assert not saver.last(run, state)
    assert saver.last(run, state), "once there is space again"


def test_the_way_back_passes_over_the_faulty_step(tmp_path: Path) -> None:
    """Also over those of earlier roll-backs that the older checkpoint knows nothing of."""
    saver, run, state, _ = saver_of(f"--save {tmp_path} --save-interval 2")
    state = at(state, run, 2)
    before = whole_weights(run)
    saver.after_step(run, state)
    run, state = saver.roll_back(run, at(state, run, 4), "step 5: bad.")
    assert (state.step, state.consumed_samples, state.skipped_steps) == (2, 16, (5,))
    assert all(torch.equal(before[name], tensor) for name, tensor in whole_weights(run).items())
    run, state = saver.roll_back(run, at(state, run, 3), "step 4: bad.")
    assert (state.step, state.skipped_steps) == (2, (4, 5))


def test_there_is_no_way_back_without_a_checkpoint(tmp_path: Path) -> None:
    saver, run, state, _ = saver_of(f"--save {tmp_path} --save-interval 9")
    with pytest.raises(FaultError, match=r"^step 2: bad. But nothing to roll back to: .* no checkpoint yet"):
        saver.roll_back(run, at(state, run, 1), "step 2: bad.")


def test_after_an_error_nobody_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saver, *_ = saver_of(f"--save {tmp_path}")
    called: list[str] = []
    monkeypatch.setattr(CheckpointManager, "abandon", lambda manager: called.append("abandon"))
    saver.abandon()
    assert called == ["abandon"]
