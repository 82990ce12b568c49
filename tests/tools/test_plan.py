# SPDX-License-Identifier: Apache-2.0
"""Exit codes of tools/plan.py, and flags that reach the run and no other."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tools import plan


def test_flags_of_the_run_are_kept_in_order_beside_those_of_the_machine() -> None:
    words = shlex.split("show --num-layers 4 --split 9,1,0 --hardware dgx-2 --rampup-batch-size 1 2 3 --nodes 2 --bf16")
    arguments = plan.parse_arguments(words)
    assert (arguments.hardware, arguments.nodes) == ("dgx-2", 2)
    assert arguments.run_flags == shlex.split("--num-layers 4 --split 9,1,0 --rampup-batch-size 1 2 3 --bf16")


def test_a_command_without_a_run_takes_no_such_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        plan.parse_arguments(["predict", "rows.csv", "--num-layers", "4"])
    assert left.value.code == 2
    assert "unknown: --num-layers 4" in capsys.readouterr().err


def test_bad_input_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main(["predict", str(tmp_path / "none.csv")]) == 2
    assert plan.main(["show", "--hardware", "moon", "--nodes", "1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and "no hardware 'moon'" in second


def test_an_interruption_is_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tools.plan_predict.run", interrupt)
    assert plan.main(["predict", "rows.csv"]) == 130


def test_plans_need_no_torch() -> None:
    """Importing it would take longer than most plans."""
    code = "import sys, tools.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=plan.__file__.rpartition("/tools/")[0]).returncode == 0
