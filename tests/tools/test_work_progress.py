# SPDX-License-Identifier: Apache-2.0
"""What all kinds of progress share; how bytes and tokens are told is tested with them."""

import pytest
from rich.progress import BarColumn

from tools import work_progress
from tools.work_progress import WorkProgress


class Stones(WorkProgress):
    def _stand(self, rate: float) -> str:
        return f"{self._done} of {self._total} stones, {rate:.0f}/s"


def test_lines_come_every_few_seconds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Stones("laying", 10, BarColumn()) as progress:
        progress(2)
        assert progress.line(1.0) == "laying: 2 of 10 stones, 2/s, about 4 s left"
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(work_progress, "_SECONDS_A_LINE", 0.0)
        progress(3)
    assert capsys.readouterr().err.startswith("laying: 5 of 10 stones")


def test_who_does_not_speak_is_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_progress, "_SECONDS_A_LINE", 0.0)
    with Stones("laying", 10, BarColumn(), speaks=False) as progress:
        progress(1)
    assert capsys.readouterr() == ("", "")
