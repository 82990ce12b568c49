# SPDX-License-Identifier: Apache-2.0
import errno
import json
import logging
import os
from pathlib import Path

import pytest

from megatron_core.training.exit_file import LastWord, remove_exit_file, write_exit_file


def test_what_is_written_and_forgotten(tmp_path: Path) -> None:
    save = tmp_path / "run"
    write_exit_file(save, code=0, reason="finished", step=7)
    assert (save / "exit.json").read_text() == '{"code": 0, "reason": "finished", "step": 7}\n'
    write_exit_file(save, code=75, reason="SIGUSR1", step=9, checkpoint_step=9)
    record = {"code": 75, "reason": "SIGUSR1", "step": 9, "checkpoint_step": 9}
    assert json.loads((save / "exit.json").read_text()) == record
    assert os.listdir(save) == ["exit.json"]
    remove_exit_file(save)
    remove_exit_file(save)
    assert not os.listdir(save)


def test_a_full_disk_is_said_and_leaves_no_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.ERROR, logger="megatron_core"):
        write_exit_file(tmp_path, code=75, reason="SIGTERM", step=3)
    assert not list(tmp_path.iterdir())
    assert "cannot write" in caplog.text and "No space left" in caplog.text and '"code": 75' in caplog.text


def test_a_directory_that_cannot_be_made_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    write_exit_file(tmp_path / "file" / "run", code=1, reason="fault", step=3)
    assert "cannot write" in caplog.text


def test_one_rank_has_the_last_word_and_a_later_one_replaces_it(tmp_path: Path) -> None:
    word = LastWord(str(tmp_path), rank=0)
    word.say(1, "too early")
    word.where = lambda: (9, 8)
    word.say(75, "SIGTERM")
    record = {"code": 75, "reason": "SIGTERM", "step": 9, "checkpoint_step": 8}
    assert json.loads((tmp_path / "exit.json").read_text()) == record
    for silent in (LastWord(str(tmp_path), rank=1), LastWord(None, rank=0)):
        silent.forget_earlier()
        silent.say(0, "finished")
    assert json.loads((tmp_path / "exit.json").read_text()) == record
    word.forget_earlier()
    assert not os.listdir(tmp_path)
