# SPDX-License-Identifier: Apache-2.0
"""Runs that end well: OPS-01 and OPS-03 of the collected cases, on the command line that users type."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_core.checkpoint.directory import read_manifest, steps_present
from megatron_core.training.metrics import read_metrics
from megatron_core.training.pretrain import pretrain
from tests.e2e.test_command_line import MOCK, ending, finish, free_port, start

__all__ = ["free_port"]

LONG = f"{MOCK} --train-iters 1000000 --lr-decay-iters 100 --exit-signal-handler"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "0")


pytestmark = pytest.mark.usefixtures("one_thread")


def start_two(flags: str, port: int) -> list[subprocess.Popen[str]]:
    """Two data-parallel ranks as srun starts them: nobody but the test can signal one of them."""
    processes = []
    for rank in ("0", "1"):
        slurm = {"PROCID": rank, "LOCALID": rank, "NTASKS": "2", "STEP_NUM_TASKS": "2", "STEP_TASKS_PER_NODE": "2"}
        variables = {f"SLURM_{name}": value for name, value in slurm.items()}
        variables |= {"SLURM_JOB_ID": "4711", "SLURM_STEP_NODELIST": "localhost", "MASTER_PORT": str(port)}
        processes.append(start(flags, variables))
    return processes


def wait_for_step(save: Path, step: int, processes: list[subprocess.Popen[str]]) -> None:
    """Return once the metrics have that step."""
    deadline = time.monotonic() + 60
    while not any(line["step"] >= step for line in steps_of(save)):
        assert time.monotonic() < deadline and all(process.poll() is None for process in processes), [
            finish(process)[1] for process in processes
        ]
        time.sleep(0.05)


def run_here(flags: str, save: Path, step: int, then: Callable[[], object]) -> int:
    """The exit code of a run in this process, to which `then` is done once it has taken that step."""

    def watch() -> None:
        try:
            wait_for_step(save, step, [])
        finally:
            then()

    friend = threading.Thread(target=watch)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)  # for one that comes when the run is over
    try:
        friend.start()
        code = pretrain(flags.split(), time.monotonic())
        friend.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    return code


def steps_of(save: Path) -> list[dict[str, float]]:
    path = save / "metrics.jsonl"
    return [line for line in read_metrics(path) if "loss" in line] if path.exists() else []


def last_step(save: Path) -> int:
    """Of what was trained, which must be what exit.json says and the newest checkpoint holds."""
    step = int(steps_of(save)[-1]["step"])
    assert ending(save)["step"] == step
    assert steps_present(save)[-1] == step
    assert read_manifest(save, step).state["consumed_samples"] == 4 * step
    return step


def test_ops_01_one_signalled_rank_takes_all_along_and_the_next_run_goes_on(tmp_path: Path, free_port: int) -> None:
    flags = f"{LONG} --save {tmp_path} --load {tmp_path}"
    processes = start_two(flags, free_port)
    wait_for_step(tmp_path, 2, processes)
    for _ in range(3):  # whoever is impatient changes nothing
        processes[1].send_signal(signal.SIGTERM)
    results = [finish(process) for process in processes]
    assert [code for code, _ in results] == [75, 75], results
    stopped = last_step(tmp_path)
    assert (ending(tmp_path)["code"], ending(tmp_path)["reason"]) == (75, "SIGTERM")
    other_layout = f"{flags} --exit-interval {stopped + 1}"
    assert pretrain(other_layout.split(), time.monotonic()) == 0
    assert last_step(tmp_path) == stopped + 1
    assert [line["step"] for line in steps_of(tmp_path)] == list(range(1, stopped + 2))


def test_ops_01_a_signal_to_torchrun_is_no_failure(tmp_path: Path) -> None:
    """torchrun passes SIGTERM on; a rank that left with 75 would be a failure to it, and be started anew."""
    process = start(f"{LONG} --save {tmp_path}", None, *TORCHRUN)
    wait_for_step(tmp_path, 2, [process])
    process.send_signal(signal.SIGTERM)
    _, said = finish(process)
    assert (ending(tmp_path)["code"], ending(tmp_path)["reason"]) == (75, "SIGTERM"), said
    last_step(tmp_path)


def test_ops_01_a_signal_during_evaluation_does_not_wait_for_its_end(tmp_path: Path, free_port: int) -> None:
    flags = f"{LONG} --eval-interval 2 --eval-iters 20000 --save {tmp_path}"
    processes = start_two(flags, free_port)
    wait_for_step(tmp_path, 2, processes)
    processes[1].send_signal(signal.SIGTERM)
    results = [finish(process) for process in processes]
    assert [code for code, _ in results] == [75, 75], results
    assert last_step(tmp_path) == 2
    assert not any("validation_loss" in line for line in read_metrics(tmp_path / "metrics.jsonl"))


def test_ops_01_a_signal_while_a_checkpoint_is_written_leaves_a_whole_one(tmp_path: Path) -> None:
    flags = f"{LONG} --save {tmp_path} --save-interval 1"
    assert run_here(flags, tmp_path, 3, lambda: os.kill(os.getpid(), signal.SIGUSR1)) == 75
    assert (ending(tmp_path)["code"], ending(tmp_path)["reason"]) == (75, "SIGUSR1")
    assert steps_present(tmp_path) == list(range(1, last_step(tmp_path) + 1))


def test_ops_01_without_the_handler_a_signal_ends_a_run_as_any_program(tmp_path: Path) -> None:
    process = start(f"{LONG.replace(' --exit-signal-handler', '')} --save {tmp_path}")
    wait_for_step(tmp_path, 1, [process])
    process.send_signal(signal.SIGUSR1)
    assert finish(process)[0] == -signal.SIGUSR1
    assert not (tmp_path / "exit.json").exists() and not steps_present(tmp_path)


@pytest.mark.parametrize(
    ("flags", "reason", "step"),
    [
        ("--save-interval 1000", "finished", 7),
        ("--save-interval 1000 --exit-interval 5", "exit_interval 5", 5),
        ("--save-interval 5 --exit-interval 5", "exit_interval 5", 5),
        ("--save-interval 7", "finished", 7),
        ("--exit-duration-in-mins 0.0001", "exit_duration_in_mins 0.0001", 1),
    ],
)
def test_ops_03_every_end_is_saved_once_and_the_next_run_continues(
    flags: str, reason: str, step: int, tmp_path: Path
) -> None:
    run = f"{MOCK} --train-iters 7 --save {tmp_path} --load {tmp_path}"
    assert pretrain(f"{run} {flags}".split(), time.monotonic()) == 0
    assert (ending(tmp_path)["code"], ending(tmp_path)["reason"]) == (0, reason)
    assert last_step(tmp_path) == step and steps_present(tmp_path) == [step]
    files = sorted(path.name for path in (tmp_path / f"step_{step:08d}").iterdir())
    assert files == ["manifest.json", "rank_00000.safetensors"], "a step is saved once"
    assert pretrain(run.split(), time.monotonic()) == 0
    assert last_step(tmp_path) == 7
    assert [line["step"] for line in steps_of(tmp_path)] == [1, 2, 3, 4, 5, 6, 7]


def test_ops_03_a_kill_file_stops_a_run_and_keeps_the_next_from_starting(tmp_path: Path) -> None:
    save, switch = tmp_path / "run", tmp_path / "stop"
    flags = f"{LONG} --save {save} --load {save} --kill-switch-path {switch}"
    assert run_here(flags, save, 2, switch.touch) == 0
    assert (ending(save)["code"], ending(save)["reason"]) == (0, f"kill_switch_path {switch}")
    stopped = last_step(save)
    assert pretrain(flags.split(), time.monotonic()) == 0
    assert (ending(save)["code"], ending(save)["reason"]) == (0, f"kill_switch_path {switch}")
    assert steps_of(save)[-1]["step"] == steps_present(save)[-1] == stopped, "nothing was trained"
