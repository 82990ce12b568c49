# SPDX-License-Identifier: Apache-2.0
"""Whole runs on disks that fill up, vanish or refuse: said aloud, no older checkpoint lost, and training goes on."""

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.directory import has_manifest, steps_present
from megatron_core.training.metrics import read_metrics
from megatron_core.training.pretrain import pretrain
from megatron_core.training.report import Report
from megatron_core.training.step_metrics import StepMetrics
from tests.e2e.live_run import TINY
from tests.e2e.same_run import differences

STEPS = 7
FLAGS = f"{TINY} --train-iters {STEPS} --save-interval 1"
LAST_WHOLE = ([1], [2])
"""Where the disk is full after step 3, and one is kept: that of step 2 may still be being written then."""
Events = Mapping[int, Callable[[], object]]
Run = Callable[[Path, str, Events], tuple[int, str]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def straight(one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run without any disturbance has saved."""
    save = tmp_path_factory.mktemp("straight")
    assert pretrain(f"{FLAGS} --save {save}".split(), time.monotonic()) == 0
    return save


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A run of one process, here: what it saves to, flags, and what happens right after which steps, before they are
    saved. Returns exit code and everything said."""
    report_step = Report.step

    def run(save: Path, flags: str, events: Events) -> tuple[int, str]:
        def step(report: Report, metrics: StepMetrics) -> None:
            report_step(report, metrics)
            events.get(metrics.step, lambda: None)()

        monkeypatch.setattr(Report, "step", step)
        code = pretrain(f"{FLAGS} --save {save} --load {save} {flags}".split(), time.monotonic())
        out, err = capsys.readouterr()
        return code, out + err

    return run


@dataclass(frozen=True)
class Disk:
    """Where a run saves, which can be made to take nothing more, and to take all again."""

    save: Path
    fill: Callable[[], object]
    free: Callable[[], object]
    reason: str
    """Why nothing can be written while it is full."""


@pytest.fixture(params=["tmpfs", "file size"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A megabyte, filled by a file; or, where nobody may mount that, a limit below the size of a checkpoint's file."""
    if request.param == "file size":
        limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        free = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # noqa: E731
        fill = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # noqa: E731
        yield Disk(tmp_path / "save", fill, free, "File too large")
        free()
        return
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mounted], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield Disk(mounted / "save", lambda: fill_up(mounted), (mounted / "filler").unlink, "No space left on device")
    subprocess.run(["umount", "--lazy", mounted], check=True)


def fill_up(folder: Path) -> None:
    """To the last byte."""
    with (folder / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))


def finished(save: Path) -> list[int]:
    return [step for step in steps_present(save) if has_manifest(save, step)]


def steps_told(save: Path) -> list[int]:
    return [line["step"] for line in read_metrics(save / "metrics.jsonl")]


def assert_ended(save: Path, step: int) -> None:
    """With all that a run that nothing disturbed would leave."""
    ending = json.loads((save / "exit.json").read_text())
    assert ending == {"code": 0, "reason": "finished", "step": step, "checkpoint_step": step}
    assert finished(save)[-1] == step


@pytest.mark.parametrize("flags", ["", "--no-async-save"])
def test_ckp_03_a_full_disk_costs_saves_until_there_is_space(run: Run, disk: Disk, straight: Path, flags: str) -> None:
    """CKP-03: though one is to be kept, the one before stays until a new one is whole."""
    seen: list[int] = []

    def free() -> None:
        seen.extend(finished(disk.save))
        disk.free()

    code, said = run(disk.save, f"--most-recent-k 1 {flags}", {3: disk.fill, 6: free})
    assert code == 0, said
    assert seen in LAST_WHOLE and finished(disk.save) == [STEPS]
    for step in (3, 4):
        assert f"the checkpoint of step {step} was not saved: cannot write" in said
    assert (disk.reason in said and "training goes on" in said) or flags
    assert_ended(disk.save, STEPS)
    assert list(differences(disk.save, straight, STEPS)) == []


def test_ckp_03_a_disk_that_stays_full_ends_the_run_with_1_and_keeps_what_there_was(
    run: Run, disk: Disk, straight: Path
) -> None:
    code, said = run(disk.save, "--most-recent-k 1", {3: disk.fill})
    assert code == 1
    assert "finished, but the last checkpoint was not saved" in said
    kept = finished(disk.save)
    assert kept in LAST_WHOLE
    disk.free()
    code, said = run(disk.save, "--most-recent-k 1", {})
    assert code == 0 and f"loaded weights, optimizer and state from {disk.save}/step_0000000{kept[0]}" in said
    assert_ended(disk.save, STEPS)
    assert list(differences(disk.save, straight, STEPS)) == []


@pytest.mark.parametrize("flags", ["", "--no-async-save"])
def test_a_full_disk_stops_a_run_that_shall_not_go_on_without_saving(run: Run, disk: Disk, flags: str) -> None:
    code, said = run(disk.save, f"--stop-on-save-failure {flags}", {3: disk.fill})
    assert code == 1, said
    assert disk.reason in said and "stop_on_save_failure" in said
    assert finished(disk.save) in ([1], [1, 2]) and steps_told(disk.save)[-1] < STEPS


def test_a_directory_that_vanishes_is_made_again(run: Run, straight: Path, tmp_path: Path) -> None:
    """A save that is under way may be hit or not; the ones after it are whole, and the loss of the metrics is told."""
    save = tmp_path / "save"
    code, said = run(save, "", {3: lambda: save.rename(tmp_path / "gone")})
    assert code == 0, said
    assert "metrics.jsonl is gone" in said
    assert finished(save)[-4:] == [4, 5, 6, 7] and steps_told(save) == [4, 5, 6, 7]
    assert_ended(save, STEPS)


def test_a_directory_that_refuses_costs_saves_until_it_does_not(run: Run, straight: Path, tmp_path: Path) -> None:
    """Root may write in spite of permissions, but not into what is immutable."""
    save = tmp_path / "save"
    lock, unlock = (["chattr", "+i"], ["chattr", "-i"]) if os.geteuid() == 0 else (["chmod", "555"], ["chmod", "755"])
    tried = tmp_path / "tried"
    tried.mkdir()
    if subprocess.run([*lock, tried], capture_output=True).returncode:
        pytest.skip("this file system knows no immutable directories")
    subprocess.run([*unlock, tried], check=True)
    events = {3: lambda: subprocess.run([*lock, save]), 5: lambda: subprocess.run([*unlock, save])}
    code, said = run(save, "--no-async-save", events)
    assert code == 0, said
    for step in (3, 4):
        assert f"the checkpoint of step {step} was not saved: cannot make" in said
    assert finished(save) == [1, 2, 5, 6, 7]
    assert_ended(save, STEPS)
    assert list(differences(save, straight, STEPS)) == []
