# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest

from tools import plan

FLAGS = """
simulate --hardware dgx-a100-80 --nodes 1 --num-layers 8 --hidden-size 1024 --num-attention-heads 16 --bf16
--seq-length 512 --max-position-embeddings 512 --vocab-size 50257 --global-batch-size 16 --micro-batch-size 2
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4
"""
WORDS = FLAGS.split()


def test_numbers_trace_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, picture = tmp_path / "step.json", tmp_path / "step.svg"
    assert plan.main([*WORDS, "--trace", str(trace), "--picture", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "tp 2 x pp 4 x dp 1, 1f1b" in lines[0]
    assert "bubble" in lines[1] and "communication that nothing hides" in lines[1]
    stages = lines[lines.index(next(line for line in lines if line.startswith("stage "))) + 1 :]
    assert [line.split()[0] for line in stages] == ["0", "1", "2", "3"]
    slices = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert sum(event["name"].startswith(("F", "B")) for event in slices) == 4 * 2 * 8
    assert {"stage 3", "forward"} <= {line.strip(" <!->") for line in picture.read_text().splitlines()}


def test_where_nothing_can_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([*WORDS, "--trace", str(tmp_path / "no" / "step.json")]) == 2
    assert "step.json cannot be written: No such file" in capsys.readouterr().err
    assert plan.main([*WORDS, "--picture", "step.bmp"]) == 2
    assert "must end in .png or .svg" in capsys.readouterr().err
