# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from megatron_core.errors import ConfigError
from megatron_core.training.save_directory import check_save_directory


def test_a_directory_that_can_be_made_is_not_made_yet(tmp_path: Path) -> None:
    check_save_directory(None)
    check_save_directory(str(tmp_path))
    check_save_directory(str(tmp_path / "new" / "run"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_way(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is a file, not a directory"):
        check_save_directory(str(tmp_path / "file" / below))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))  # root may write anywhere
    with pytest.raises(ConfigError, match="no permission to write"):
        check_save_directory(str(tmp_path / "run"))
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]
