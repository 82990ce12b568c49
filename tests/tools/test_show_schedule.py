# SPDX-License-Identifier: Apache-2.0
"""The command as a user runs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--pipeline-size", "2", "--microbatches", "3")


def run(*arguments, cwd=ROOT, before="pass"):
    code = f"{before}; import runpy, sys; sys.argv = ['show_schedule.py', *sys.argv[1:]]; "
    code += f"runpy.run_path({str(ROOT / 'tools' / 'show_schedule.py')!r}, run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_the_grid_bubble_and_live_activations_are_printed(tmp_path):
    result = run(*SMALL, cwd=tmp_path)  # from anywhere, installed or not
    assert result.returncode == 0, result.stderr
    assert "1f1b   ·   2 stages   ·   3 microbatches" in result.stdout
    assert "0  F0 F1 ······B0─── F2 B1─── ···B2─── " in result.stdout
    assert "bubble 33.3%" in result.stdout
    assert "peak live activations, by stage: 2 1" in result.stdout
    assert "\x1b[" not in result.stdout


def test_virtual_stages_interleave_by_default():
    result = run(*SMALL, "--virtual-size", "2", "--backward-time", "1")
    assert result.returncode == 0, result.stderr
    assert "interleaved   ·   2 stages of 2 chunks" in result.stdout
    assert "F0.1" in result.stdout


@pytest.mark.parametrize("suffix, magic", [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_picture_is_written(tmp_path, suffix, magic):
    path = tmp_path / f"picture{suffix}"
    result = run(*SMALL, "--schedule", "zero-bubble", "--output", str(path))
    assert result.returncode == 0, result.stderr
    assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--schedule", "1f1b", "--virtual-size", "2"), "use interleaved"),
        (("--schedule", "chimera"), "chimera"),
        (("--pipeline-size", "0"), "not 0"),
        (("--backward-time", "0"), "above 0"),
        (("--output", "picture.bmp"), ".png or .svg"),
        (("--output", "no/such/folder/picture.png"), "no/such/folder"),
    ],
)
def test_what_is_impossible_is_said_with_exit_code_2(arguments, words):
    result = run(*SMALL, *arguments)
    assert result.returncode == 2
    assert words in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_a_picture_without_matplotlib_is_refused():
    result = run(*SMALL, "--output", "x.png", before="import sys; sys.modules['matplotlib'] = None")
    assert result.returncode == 2
    assert "matplotlib, which is not installed" in result.stderr
    assert not (ROOT / "x.png").exists()
