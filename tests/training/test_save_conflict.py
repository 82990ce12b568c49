# SPDX-License-Identifier: Apache-2.0
"""Two runs in one directory: the later start takes whichever step is newest, so that is refused beforehand."""

import re
from pathlib import Path

import pytest

from megatron_core.checkpoint.directory import prepare
from megatron_core.config.checkpoint import CheckpointConfig
from megatron_core.errors import ConfigError
from megatron_core.training.save_conflict import check_save_conflict, is_own
from tests.checkpoint import small_checkpoint


@pytest.fixture
def held(tmp_path: Path) -> Path:
    for step in (90, 100):
        small_checkpoint.save(tmp_path, step)
    prepare(tmp_path, 110)
    return tmp_path


def test_a_run_that_goes_on_in_its_own_directory(held: Path) -> None:
    check_save_conflict(CheckpointConfig(save=str(held), load=f"{held}/."), 100)
    check_save_conflict(CheckpointConfig(save=str(held), load=str(held), ckpt_step=100), 100)
    check_save_conflict(CheckpointConfig(save=str(held), load=str(held)), 90)  # step 100 was damaged


def test_directories_without_checkpoints(tmp_path: Path) -> None:
    check_save_conflict(CheckpointConfig(load=str(tmp_path)), None)
    check_save_conflict(CheckpointConfig(save=str(tmp_path / "none")), None)
    prepare(tmp_path, 110)
    check_save_conflict(CheckpointConfig(save=str(tmp_path)), None)
    check_save_conflict(CheckpointConfig(save=str(tmp_path), load="elsewhere"), 100)


@pytest.mark.parametrize(
    ("load", "more", "start", "message"),
    [
        (
            None,
            {},
            None,
            "step 90, 100, and this run does not start from them, .*: --load HELD goes on from them, or na",
        ),
        ("/elsewhere", {}, 7, "this run does not start from them"),
        (
            "HELD",
            {"finetune": True},
            None,
            "--finetune starts from step 0, .*: name another --save, or drop --finetune",
        ),
        ("HELD", {"ckpt_step": 90}, 90, "--ckpt-step 90 goes back: a later start would take step 100, .*after 90$"),
    ],
)
def test_a_later_start_would_take_the_wrong_one(
    held: Path, load: str | None, more: dict[str, int], start: int | None, message: str
) -> None:
    load = load and load.replace("HELD", str(held))
    config = CheckpointConfig(save=str(held), load=load, **more)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message.replace("HELD", re.escape(str(held)))):
        check_save_conflict(config, start)


def test_one_directory_by_two_names(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert is_own(CheckpointConfig(save=str(tmp_path), load=str(tmp_path / "link")))
    assert not is_own(CheckpointConfig(save=str(tmp_path), load=str(tmp_path / "other")))
    assert not is_own(CheckpointConfig(save=str(tmp_path)))
