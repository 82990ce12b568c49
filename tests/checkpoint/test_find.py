# SPDX-License-Identifier: Apache-2.0
"""CKP-02: a run starts new only where there is nothing to lose."""

from pathlib import Path

import pytest

from megatron_core.checkpoint.directory import prepare, step_directory
from megatron_core.checkpoint.find import Found, find_newest, find_step, usable_steps
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


def damage(root: Path, step: int) -> None:
    with (step_directory(root, step) / "rank_00000.safetensors").open("ab") as file:
        file.write(b"x")


def test_the_newest_by_number(tmp_path: Path) -> None:
    for step in (90, 100):
        small_checkpoint.save(tmp_path, step)
    found = find_newest(tmp_path)
    assert found.manifest is not None and (found.manifest.step, found.passed_over) == (100, ())


def test_falls_back_and_says_so(tmp_path: Path) -> None:
    for step in (90, 100, 110):
        small_checkpoint.save(tmp_path, step)
    damage(tmp_path, 110)
    prepare(tmp_path, 120)
    found = find_newest(tmp_path)
    assert found.manifest is not None and found.manifest.step == 100
    first, second = found.passed_over
    assert "step_00000120 has no manifest.json" in first and "step_00000110/rank_00000.safetensors has" in second
    older = find_newest(tmp_path, below=100)
    assert older.manifest is not None and older.manifest.step == 90
    assert usable_steps(tmp_path) == [90, 100]


def test_nothing_to_lose(tmp_path: Path) -> None:
    assert find_newest(tmp_path / "none") == Found(manifest=None)
    assert find_newest(tmp_path) == Found(manifest=None)
    (tmp_path / "metrics.jsonl").write_text("")
    prepare(tmp_path, 10)
    found = find_newest(tmp_path, own=True)
    assert found.manifest is None and "step_00000010 has no manifest.json" in found.passed_over[0]


def test_what_another_run_left_is_nothing_to_start_new_from(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match=r"holds no step_\* directory, but metrics\.jsonl; name a directory that"):
        find_newest(tmp_path)
    prepare(tmp_path, 10)
    with pytest.raises(CheckpointError, match=r"no usable checkpoint: .*step_00000010 has no manifest\.json"):
        find_newest(tmp_path)


def test_a_checkpoint_instead_of_the_directory_that_holds_it(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 10)
    with pytest.raises(CheckpointError, match="is one checkpoint: --load the directory that holds it, --ckpt-step its"):
        find_newest(tmp_path / "step_00000010")


def test_only_damaged_ones(tmp_path: Path) -> None:
    for step in (90, 100):
        small_checkpoint.save(tmp_path, step)
        damage(tmp_path, step)
    with pytest.raises(CheckpointError, match=r"holds no usable checkpoint: .*step_00000100.*; .*step_00000090"):
        find_newest(tmp_path)


def test_nothing_older(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 90)
    with pytest.raises(CheckpointError, match="holds no usable checkpoint: no older one"):
        find_newest(tmp_path, below=90)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("text", ["999", "", "garbage"])
def test_another_programs_tracker(tmp_path: Path, text: str, own: bool) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    with pytest.raises(CheckpointError, match=r"iteration\.txt, which looks like a Megatron-LM checkpoint, and no"):
        find_newest(tmp_path, own=own)
    small_checkpoint.save(tmp_path, 7)
    assert find_newest(tmp_path).manifest is not None


@pytest.mark.parametrize(
    ("name", "program"), [("global_step10", "DeepSpeed"), ("__0_0.distcp", "torch.distributed"), ("x.pt", "torch.save")]
)
def test_files_of_other_programs(tmp_path: Path, name: str, program: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=f"holds {name}, which looks like a .*{program}"):
        find_newest(tmp_path, own=True)


def test_a_link_is_no_reason_to_start_new(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path / "elsewhere", 5)
    root = tmp_path / "root"
    root.mkdir()
    (root / "step_00000005").symlink_to(tmp_path / "elsewhere" / "step_00000005")
    with pytest.raises(CheckpointError, match=r"no usable checkpoint: .*symbolic link"):
        find_newest(root)


def test_the_step_asked_for(tmp_path: Path) -> None:
    for step in (90, 100, 110):
        small_checkpoint.save(tmp_path, step)
    damage(tmp_path, 100)
    found = find_step(tmp_path, 90)
    assert found.manifest is not None and found.manifest.step == 90
    with pytest.raises(CheckpointError, match=r"step_00000007 does not exist; usable steps in .*: 90, 110$"):
        find_step(tmp_path, 7)
    with pytest.raises(CheckpointError, match=r"rank_00000\.safetensors has .*; usable steps in .*: 90, 110$"):
        find_step(tmp_path, 100)
    with pytest.raises(CheckpointError, match=r"usable steps in .*: none$"):
        find_step(tmp_path / "none", 7)
