# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from tools.inspect_dataset import main


def test_a_data_set_that_is_not_there_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent")]) == 2
    shown = capsys.readouterr()
    assert "absent" in shown.err and "Traceback" not in shown.err
