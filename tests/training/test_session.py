# SPDX-License-Identifier: Apache-2.0
"""What a session leaves behind, however it ends; the signals and faults that end it are tested end to end."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatron_core.checkpoint.directory import step_directory, steps_present
from megatron_core.errors import CheckpointError, DataError
from megatron_core.training import session as module
from megatron_core.training.exit_file import LastWord
from megatron_core.training.faults import FaultError, Verdict
from megatron_core.training.session import begin, run_to_end
from tests.e2e.proof import FAMILIES, nobody, ready

FLAGS = f"{FAMILIES['gpt2']} --num-layers 1 --micro-batch-size 8 --train-iters 2"


def run(flags: str) -> int:
    begun = begin(*ready(0, 1, f"{FLAGS} {flags}"))
    last_word = LastWord(begun.run.config.checkpoint.save, rank=0)
    return run_to_end(begun, dist.HashStore(), nobody(begun.run), last_word, time.monotonic())


def ending(save: Path) -> dict[str, Any]:
    return json.loads((save / "exit.json").read_text())


def test_an_end_is_told_with_the_step_to_go_on_from(tmp_path: Path) -> None:
    assert run(f"--save {tmp_path}") == 0
    assert ending(tmp_path) == {"code": 0, "reason": "finished", "step": 2, "checkpoint_step": 2}


@pytest.mark.parametrize(
    ("error", "code"), [(ZeroDivisionError("b"), 1), (DataError("b"), 2), (KeyboardInterrupt("b"), 1)]
)
def test_an_error_is_told_too(error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the checkpoint is there before the last validation, in which this run dies."""

    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(module, "validate_at_end", broken)
    with pytest.raises(type(error)):
        run(f"--save {tmp_path}")
    told = {"code": code, "reason": f"{type(error).__name__}: b", "step": 2, "checkpoint_step": 2}
    assert ending(tmp_path) == told


def test_a_fault_does_not_cost_the_checkpoint_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = "megatron_core.training.train_step.judge"
    monkeypatch.setattr(judge, lambda seen, *others, **more: Verdict("apply" if seen.step == 1 else "stop", "bad"))
    with pytest.raises(FaultError, match="bad"):
        run(f"--save {tmp_path} --save-interval 1")
    assert ending(tmp_path) == {"code": 1, "reason": "FaultError: bad", "step": 1, "checkpoint_step": 1}
    assert steps_present(tmp_path) == [1]


def test_a_run_that_dies_leaves_no_word_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exit.json").write_text("{}")
    monkeypatch.setattr(module, "describe", lambda *arguments: (tmp_path / "exit.json").unlink())
    with pytest.raises(FileNotFoundError):
        run(f"--save {tmp_path}")


def test_a_run_that_is_refused_leaves_the_word_of_the_run_that_is_there(tmp_path: Path) -> None:
    run(f"--save {tmp_path}")
    before = ending(tmp_path)
    with pytest.raises(Exception, match="holds checkpoints of step 2"):
        run(f"--save {tmp_path}")
    assert ending(tmp_path) == before


def test_a_last_checkpoint_that_was_not_saved_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise CheckpointError("no space left")

    monkeypatch.setattr("megatron_core.checkpoint.manager.prepare", refuse)
    assert run(f"--save {tmp_path}") == 1
    assert ending(tmp_path) == {"code": 1, "reason": "finished, but the last checkpoint was not saved", "step": 2}


def test_a_start_from_an_older_checkpoint_reads_its_data(tmp_path: Path) -> None:
    """The newest one is damaged where only loading sees it: the data goes back as far as the weights."""
    run(f"--save {tmp_path} --save-interval 1")
    assert steps_present(tmp_path) == [1, 2]
    path = step_directory(tmp_path, 2) / "rank_00000.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 1
    path.write_bytes(damaged)
    begun = begin(*ready(0, 1, f"{FLAGS} --save {tmp_path} --load {tmp_path}"))
    assert (begun.start.state.step, begun.state.step, begun.state.consumed_samples) == (2, 1, 8)
    plan = ((8, 9, 10, 11, 12, 13, 14, 15),)
    (microbatch,) = begun.run.source.step(plan, None)
    expected = [begun.run.data.datasets.train.sample(n).tokens[:-1].tolist() for n in plan[0]]
    assert microbatch.tokens.tolist() == expected


def test_the_seed_of_the_checkpoint_orders_the_data(tmp_path: Path) -> None:
    run(f"--save {tmp_path}")
    load = f"--load {tmp_path} --seed 99"
    kept, own = (begin(*ready(0, 1, f"{FLAGS} {flags}")) for flags in (load, f"{load} --no-load-rng"))
    assert (kept.run.config.training.seed, own.run.config.training.seed) == (1234, 99)
    first, second = (b.run.data.datasets.train.sample(16).tokens.tolist() for b in (kept, own))
    assert first != second
