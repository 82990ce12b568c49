# SPDX-License-Identifier: Apache-2.0
"""Exit codes; whole runs from the command line are tested end to end."""

import contextlib
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from megatron_core.errors import DataError
from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.parallel.context import Group
from megatron_core.training import pretrain as module
from megatron_core.training.launch import Launch
from megatron_core.training.pretrain import pretrain
from tests.e2e.proof import FAMILIES, SMALL

GPT2 = FAMILIES["gpt2"]


@pytest.mark.parametrize(("local_rank", "lines"), [(0, 1), (1, 0)])
def test_one_rank_of_a_node_tells_the_user(
    local_rank: int, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Launch(launcher="torchrun", rank=local_rank, local_rank=local_rank, world_size=2)
    monkeypatch.setattr(module, "detect", lambda: launch)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert pretrain([*SMALL.split(), *GPT2.split(), "--num-layers", "-3"], time.monotonic()) == 2
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_a_rank_alone_with_its_error_signs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once ranks train, one of them may meet a broken file that no other reads: that rank must not stay silent."""
    monkeypatch.setattr(module, "detect", lambda: Launch(launcher="torchrun", rank=3, local_rank=3, world_size=4))
    monkeypatch.setattr(module, "process_group", lambda *arguments: contextlib.nullcontext(dist.HashStore()))
    context = SimpleNamespace(
        rank=3, grid=SimpleNamespace(world_size=4), log=CollectiveLog(), world=Group("world", (3,), 0)
    )
    monkeypatch.setattr(module, "create_context", lambda *arguments, **options: context)
    monkeypatch.setattr(module, "begin", lambda *arguments: None)

    def broken(*arguments: object) -> None:
        raise DataError("shard_7.bin: token 51234 is outside the vocabulary")

    monkeypatch.setattr(module, "run_to_end", broken)
    assert pretrain([*SMALL.split(), *GPT2.split()], time.monotonic()) == 2
    assert capsys.readouterr().err == "[rank 3] shard_7.bin: token 51234 is outside the vocabulary\n"


def test_an_unusable_save_directory_is_told_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert pretrain([*SMALL.split(), *GPT2.split(), "--save", str(tmp_path / "file")], time.monotonic()) == 2
    assert "not a directory" in capsys.readouterr().err


def test_an_unusable_tracker_is_told_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rank 0 alone opens it, so by then the others would fail around it."""
    (tmp_path / "file").write_text("")
    flags = ["--tensorboard-dir", str(tmp_path / "file")]
    assert pretrain([*SMALL.split(), *GPT2.split(), *flags], time.monotonic()) == 2
    assert capsys.readouterr().err.startswith("--tensorboard-dir ")


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_run_rank", interrupted)
    assert pretrain([*SMALL.split(), *GPT2.split()], time.monotonic()) == 1
    assert "interrupted" in capsys.readouterr().err


def test_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "_run_rank", broken)
    with pytest.raises(ZeroDivisionError):
        pretrain([*SMALL.split(), *GPT2.split()], time.monotonic())


@pytest.mark.parametrize(("local_rank", "told"), [(0, True), (1, False)])
def test_a_dry_run_is_told_by_one_rank_and_starts_nothing(
    local_rank: int, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "detect", lambda: Launch(launcher="torchrun", local_rank=local_rank, world_size=2))
    monkeypatch.setattr(module, "process_group", lambda *arguments: pytest.fail("no rank may be met"))
    flags = f"{GPT2} --dry-run --rank 1 --pipeline-model-parallel-size 2"
    assert pretrain([*SMALL.split(), *flags.split()], time.monotonic()) == 0
    assert ("rank 1 of 2: stage 1 of 2" in capsys.readouterr().out) is told
