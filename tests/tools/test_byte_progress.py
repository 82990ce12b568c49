# SPDX-License-Identifier: Apache-2.0
import pytest

from tools import work_progress
from tools.byte_progress import ByteProgress, size_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1.5e9, "1.5 GB"), (5e15, "5e+03 TB")],
)
def test_sizes(nbytes: float, text: str) -> None:
    assert size_text(nbytes) == text


def test_the_time_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with ByteProgress("verifying", 8_000_000) as progress:
        progress(1_000_000)
        progress(1_000_000)
        assert progress.line(0.5) == "verifying: 2 MB of 8 MB, 4 MB/s, about 2 s left"
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(work_progress, "_SECONDS_A_LINE", 0.0)
        progress(1)
    assert "verifying: 2 MB of 8 MB" in capsys.readouterr().err
