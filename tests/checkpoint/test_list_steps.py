# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.list_steps import list_steps, split_step_path
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


def test_usable_unfinished_and_damaged(tmp_path: Path) -> None:
    for step in (3, 5):
        small_checkpoint.save(tmp_path, step)
    with (step_directory(tmp_path, 3) / "rank_00000.safetensors").open("ab") as file:
        file.write(b"x")
    step_directory(tmp_path, 7).mkdir()
    (step_directory(tmp_path, 7) / "rank_00000.safetensors").write_bytes(b"1234")
    damaged, usable, unfinished = list_steps(tmp_path)
    assert (damaged.step, damaged.status, damaged.sections) == (3, "damaged", ())
    assert "bytes, but" in damaged.problem and damaged.saved_at is not None
    assert (usable.step, usable.status, usable.problem) == (5, "usable", "")
    assert usable.sections == ("adam_v", "mask", "master", "model")
    assert usable.nbytes == sum(path.stat().st_size for path in step_directory(tmp_path, 5).iterdir())
    assert (unfinished.step, unfinished.status, unfinished.nbytes, unfinished.saved_at) == (7, "unfinished", 4, None)


def test_a_step_that_is_a_link_or_a_file_is_not_followed(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path / "else", 5)
    step_directory(tmp_path, 5).symlink_to(step_directory(tmp_path / "else", 5))
    step_directory(tmp_path, 6).write_text("no directory")
    link, file = list_steps(tmp_path)
    assert "symbolic link" in link.problem
    assert "not a directory" in file.problem.lower()


def test_nothing_to_list(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no step_\* directory"):
        list_steps(tmp_path)
    with pytest.raises(CheckpointError, match="absent does not exist"):
        list_steps(tmp_path / "absent")


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_step_path(tmp_path / "step_00000012") == (tmp_path, 12)
    assert split_step_path(Path(f"{tmp_path}/step_00000012/")) == (tmp_path, 12)
    for other in ("step_12", "run", "step_", "step_x0000012", "step_٣٣٣٣٣٣٣٣"):
        assert split_step_path(tmp_path / other) == (tmp_path / other, None)
    (tmp_path / "step_00000012").mkdir()
    monkeypatch.chdir(tmp_path / "step_00000012")
    assert split_step_path(Path(".")) == (tmp_path, 12)
