# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_core.checkpoint.directory import read_manifest, step_directory
from tests.checkpoint import small_checkpoint
from tools.convert_checkpoint import main

TOOL = Path(__file__).parents[2] / "tools" / "convert_checkpoint.py"


def test_average_from_the_shell(tmp_path: Path) -> None:
    for step in (3, 5):
        small_checkpoint.save(tmp_path, step)
    steps = [str(step_directory(tmp_path, step)) for step in (5, 3)]
    words = [sys.executable, str(TOOL), "average", *steps, "--output", str(tmp_path / "out"), "--weights", "1", "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"0.75 x {steps[1]}"
    assert f"wrote {tmp_path / 'out' / 'step_00000005'}: master and model, " in done.stdout
    assert [entry.name for entry in read_manifest(tmp_path / "out", 5).tensors] == [
        "master/w",
        "model/norm",
        "model/w",
    ]


def test_other_models_are_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_checkpoint.save(tmp_path, 3)
    for step, model in ((4, {"num_layers": 2, "normalization": "RMSNorm"}), (5, "none")):
        monkeypatch.setattr(small_checkpoint, "CONFIG", {"model": model})
        small_checkpoint.save(tmp_path, step)
        steps = [str(step_directory(tmp_path, number)) for number in (3, step)]
        assert main(["average", *steps, "--output", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert 'note: model.normalization: "LayerNorm" in the first, "RMSNorm" in the second; first: ' in out
    assert 'in the first, "none" in the second' in out


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["average", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} is no step_* directory\n"
    assert main(["average", str(tmp_path / "step_00000003"), "--output", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "step_00000003" in error and error.count("\n") == 1
    with pytest.raises(SystemExit) as caught:
        main(["averge"])
    assert caught.value.code == 2
