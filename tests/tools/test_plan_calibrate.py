# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.planner.hardware import Hardware, hardware
from megatron_core.training import measured_machine
from tests.planner.measured import cpu
from tools import plan


def test_what_was_measured_is_hardware(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(name: str, precision: str, threads: int) -> Hardware:
        assert (name, precision, threads) == ("mine", "bf16", 2)
        return cpu({"layer": [(1, 2e-4)], "step": [(1, 1e-3)]})

    monkeypatch.setattr(measured_machine, "measure_machine", measured)
    path = tmp_path / "mine.yaml"
    assert plan.main(["calibrate", "--out", str(path), "--precision", "bf16", "--threads", "2"]) == 0
    out = capsys.readouterr().out
    assert "beside its operators a layer takes 200 us" in out and f"give it as --hardware {path}" in out
    assert hardware(str(path)).device.measured_operators[1].seconds == 1e-3
    assert "ranks of 2 threads, bf16." in path.read_text()


@pytest.mark.parametrize(
    "words, message",
    [(["--out", "mine.txt"], "must end in .yaml"), (["--out", "mine.yaml", "--threads", "0"], "at least 1, not 0")],
)
def test_bad_flags_are_told(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["calibrate", *words]) == 2
    assert message in capsys.readouterr().err
