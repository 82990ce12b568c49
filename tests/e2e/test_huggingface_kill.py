# SPDX-License-Identifier: Apache-2.0
"""A conversion that is killed, at whatever byte, leaves nothing that looks finished, and the next one goes through."""

import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from megatron_core.checkpoint.directory import finished_steps
from megatron_core.checkpoint.huggingface.export_model import export_model
from megatron_core.checkpoint.huggingface.import_model import import_model, read_architecture
from megatron_core.checkpoint.huggingface.weight_files import SINGLE
from megatron_core.checkpoint.stored_model import StoredModel
from megatron_core.checkpoint.verify import ReportBytes
from tests.checkpoint.huggingface.small_models import LLAMA, tensors_of, write
from tests.rank_pool import run_ranks

FIRST, MIDDLE, LAST = 0.0, 0.5, 1.0


def take_in(source: Path, run: Path, report: ReportBytes) -> None:
    import_model(source, run, read_architecture(source), report=report)


def give_out(run: Path, output: Path, report: ReportBytes) -> None:
    with StoredModel(run) as stored:
        export_model(stored, output, report=report)


def killed(rank: int, world_size: int, direction: str, source: Path, output: Path, count: int) -> int:
    """Exit status of a process, forked from a rank of the pool, that is killed at its report of that number."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = [count]

    def report(nbytes: int) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        DIRECTIONS[direction](source, output, report)
    finally:
        os._exit(1)  # whatever it was, it is not the test's


DIRECTIONS = {"import": take_in, "export": give_out}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_killed_at_any_byte(tmp_path: Path, direction: str) -> None:
    source, output = write(tmp_path / "hf", LLAMA), tmp_path / "out"
    if direction == "export":
        take_in(source, tmp_path / "run", lambda nbytes: None)
        source = tmp_path / "run"
    reports: list[int] = []
    DIRECTIONS[direction](source, tmp_path / "whole", reports.append)
    for part in (FIRST, MIDDLE, LAST):
        count = max(1, int(part * len(reports)))
        assert run_ranks(killed, 1, direction, source, output, count) == [-signal.SIGKILL]
        if direction == "import":
            assert (output / "step_00000000").exists() and finished_steps(output) == []
        else:
            assert (tmp_path / "out.unfinished").exists() and not output.exists()
    DIRECTIONS[direction](source, output, lambda nbytes: None)
    if direction == "export":
        found = load_file(output / SINGLE)
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors_of(LLAMA).items())
        assert not (tmp_path / "out.unfinished").exists()
    else:
        with StoredModel(output) as stored:
            assert torch.equal(stored.read("head.weight"), tensors_of(LLAMA)["lm_head.weight"])
