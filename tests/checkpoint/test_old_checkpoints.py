# SPDX-License-Identifier: Apache-2.0
"""What goes and what stays once a newer checkpoint is published."""

import shutil
from pathlib import Path

import pytest

from megatron_core.checkpoint.directory import prepare, step_directory, steps_present
from megatron_core.checkpoint.old_checkpoints import OldCheckpoints
from megatron_core.checkpoint.retention import Retention
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


def _root(tmp_path: Path, *steps: int) -> Path:
    for step in steps:
        small_checkpoint.save(tmp_path, step)
    return tmp_path


def test_the_last_two_stay(tmp_path: Path) -> None:
    """CKP-03: 90 is older than 100."""
    root = _root(tmp_path, 90, 100, 110)
    OldCheckpoints(root, Retention(keep_last=2)).let_go(110)
    assert steps_present(root) == [100, 110]


def test_save_after_save(tmp_path: Path) -> None:
    old = OldCheckpoints(tmp_path, Retention(keep_last=1, interval=20))
    for step in range(10, 60, 10):
        small_checkpoint.save(tmp_path, step)
        old.let_go(step)
    assert steps_present(tmp_path) == [20, 40, 50]


def test_rests_of_older_steps_go_even_where_all_checkpoints_stay(tmp_path: Path) -> None:
    root = _root(tmp_path, 10, 30)
    for step in (20, 40):
        prepare(root, step)
    (step_directory(root, 20) / "rank_00000.safetensors").write_bytes(b"half of it")
    OldCheckpoints(root, Retention()).let_go(30)
    assert steps_present(root) == [10, 30, 40]


def test_damaged_ones_do_not_count(tmp_path: Path) -> None:
    """30 proved damaged: 20 and 40 are the last two; 30 is left to whoever wants to know why."""
    root = _root(tmp_path, 10, 20, 30, 40)
    (step_directory(root, 10) / "rank_00001.safetensors").write_bytes(b"cut")
    OldCheckpoints(root, Retention(keep_last=2), damaged=[30]).let_go(40)
    assert steps_present(root) == [10, 20, 30, 40]
    OldCheckpoints(root, Retention(keep_last=1), damaged=[30]).let_go(40)
    assert steps_present(root) == [10, 30, 40]


def test_a_damaged_step_that_is_saved_anew_counts(tmp_path: Path) -> None:
    root = _root(tmp_path, 10, 20)
    OldCheckpoints(root, Retention(keep_last=1), damaged=[20]).let_go(20)
    assert steps_present(root) == [20]


def test_the_one_just_published_stays_though_later_steps_are_there(tmp_path: Path) -> None:
    root = _root(tmp_path, 10, 20, 100)
    OldCheckpoints(root, Retention(keep_last=1)).let_go(20)
    assert steps_present(root) == [20, 100]


def test_what_somebody_else_removed(tmp_path: Path) -> None:
    root = _root(tmp_path, 10, 20)
    old = OldCheckpoints(root, Retention(keep_last=2))
    old.let_go(20)
    shutil.rmtree(step_directory(root, 10))
    small_checkpoint.save(root, 30)
    old.let_go(30)
    assert steps_present(root) == [20, 30]


def test_a_failure_names_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted")

    root = _root(tmp_path, 10, 20)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(CheckpointError, match=r"cannot remove .*step_00000010/manifest.json: Operation not permitted"):
        OldCheckpoints(root, Retention(keep_last=1)).let_go(20)
