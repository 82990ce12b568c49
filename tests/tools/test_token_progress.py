# SPDX-License-Identifier: Apache-2.0
import pytest

from tools import work_progress
from tools.token_progress import TokenProgress


def test_the_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with TokenProgress("piqa", 8000) as progress:
        progress(1000)
        progress(1000)
        assert progress.line(0.5) == "piqa: 2,000 of 8,000 tokens, 4,000 tokens/s, about 2 s left"
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(work_progress, "_SECONDS_A_LINE", 0.0)
        progress(1)
    assert "piqa: 2,001 of 8,000 tokens" in capsys.readouterr().err


def test_one_rank_speaks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_progress, "_SECONDS_A_LINE", 0.0)
    with TokenProgress("piqa", 8000, speaks=False) as progress:
        progress(1000)
    assert capsys.readouterr() == ("", "")
