# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import doctor
from tools.doctor import main, tell_verdict

TOOL = Path(__file__).parents[2] / "tools" / "doctor.py"


def test_two_ranks_of_torchrun(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = ["--tensor-model-parallel-size", "2", "--shared-dir", str(tmp_path), "--largest-mb", "2"]
    done = subprocess.run(
        [*torchrun, str(TOOL), *flags],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    topics = ["ranks", "versions", "settings", "limits", "clocks", "shared directory", "links", "verdict"]
    assert re.findall(r"^== (.*)$", done.stdout, re.MULTILINE) == topics
    assert done.stdout.endswith("== verdict\nall good\n")
    assert f"{tmp_path}: 2 of 2 ranks have nothing to say against it" in done.stdout
    assert re.search(r"^tp +1 x 2 +ring +2,000,000 ", done.stdout, re.MULTILINE)
    assert done.stderr.count("measuring tp all_reduce") == 3
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "NCCL_IB_DISABLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("alone")
def test_one_process_and_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("all good\n") and "one rank talks to nobody" in shown and "shared" not in shown
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    assert main(["--shared-dir", str(tmp_path / "absent")]) == 1
    verdict = capsys.readouterr().out.split("== verdict\n")[1].splitlines()
    assert verdict[0].startswith("1. NCCL_IB_DISABLE=1: nodes talk over TCP")
    assert verdict[1].startswith("2. shared directory, ranks 0") and "cannot write to" in verdict[1]


@pytest.mark.usefixtures("alone")
def test_a_layout_that_does_not_fit_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tensor-model-parallel-size", "2"]) == 2
    error = capsys.readouterr().err
    assert "1 ranks are no multiple of tp 2 x pp 1" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "flag", ["--tensor-model-parallel-size=0", "--largest-mb=-1", "--distributed-timeout-minutes=0"]
)
def test_bad_flags(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([flag])
    assert caught.value.code == 2 and "must be above 0" in capsys.readouterr().err


@pytest.mark.usefixtures("alone")
def test_what_does_not_work_is_one_line_with_the_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise RuntimeError("connection refused\nmany more lines")

    monkeypatch.setattr(doctor, "examine", fail)
    assert main([]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error on ") and error.endswith(": connection refused\n")


def test_the_verdict_is_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_verdict(["a: set b", "c: set d"]) == 1
    assert capsys.readouterr().out == "== verdict\n1. a: set b\n2. c: set d\n"
    assert tell_verdict([]) == 0
