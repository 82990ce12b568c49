# SPDX-License-Identifier: Apache-2.0
"""The demo's summary: tables against a count by hand, and the command as the quickstart runs it."""

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from megatron_core.errors import DataError
from tools.demo_summary import curve_of, summary, table_loss

ROOT = Path(__file__).resolve().parents[2]
TRAIN, VALID = b"abracadabra, abracadabra", b"a cad, a bard; abra"


def by_hand(train: bytes, valid: bytes, order: int) -> float:
    v = len(set(train + valid))
    grams = Counter(train[i : i + order] for i in range(len(train) - order + 1))
    contexts = Counter(train[i : i + order - 1] for i in range(len(train) - order + 1))
    losses = []
    for i in range(len(valid) - order + 1):
        gram = valid[i : i + order]
        losses.append(-math.log((grams[gram] + 0.5) / (contexts[gram[:-1]] + 0.5 * v)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_a_table_is_what_counting_by_hand_gives(order):
    assert table_loss(TRAIN, VALID, order) == pytest.approx(by_hand(TRAIN, VALID, order), rel=1e-12)


def test_the_shipped_text_has_the_known_table_losses():
    text = (ROOT / "data" / "tinyshakespeare.txt").read_bytes()
    cut = len(text) * 9 // 10
    assert table_loss(text[:cut], text[cut:], 2) == pytest.approx(2.482, abs=5e-4)
    assert table_loss(text[:cut], text[cut:], 3) == pytest.approx(2.052, abs=5e-4)


def test_a_text_shorter_than_the_order_is_refused():
    with pytest.raises(DataError, match="texts of 24 and 2 bytes are too short for a table of order 3"):
        table_loss(TRAIN, b"ab", 3)


def step(number: int, loss: float) -> dict[str, float]:
    return {"step": number, "loss": loss, "step_time_s": 0.5}


def validation(number: int, loss: float) -> dict[str, float]:
    return {"step": number, "validation_loss": loss, "validation_tokens": 12}


def test_a_step_done_twice_counts_once_as_it_was_last():
    curve = curve_of([step(1, 5.0), step(2, 4.0), validation(2, 3.7), step(2, 3.0), validation(2, 3.5)])
    assert curve.training == ((1, 5.0), (2, 3.0))
    assert curve.last_validation == (2, 3.5, 12)
    assert curve.seconds == 1.0


@pytest.mark.parametrize("records", [[], [step(1, 5.0)], [validation(2, 3.5)]])
def test_a_run_that_did_not_end_is_refused(records):
    with pytest.raises(DataError, match="did not come to its end"):
        curve_of(records)


def test_no_metrics_is_refused(tmp_path):
    with pytest.raises(DataError, match="left no metrics"):
        summary(tmp_path, TRAIN, VALID)


def command(run: Path, *texts: Path) -> subprocess.CompletedProcess[str]:
    tool = str(ROOT / "tools" / "demo_summary.py")
    flags = ["--run", str(run), "--train-text", str(texts[0]), "--valid-text", str(texts[1])]
    return subprocess.run([sys.executable, tool, *flags], capture_output=True, text=True, cwd=run, check=False)


def test_the_command_prints_loss_tables_curve_and_files(tmp_path):
    texts = tmp_path / "train.txt", tmp_path / "valid.txt"
    for path, content in zip(texts, (TRAIN, VALID)):
        path.write_bytes(content)
    lines = [step(1, 5.0), validation(1, 4.5), step(2, 4.0), validation(2, 1.2342)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = command(tmp_path, *texts)
    assert result.returncode == 0, result.stderr
    assert "1.234  this GPT after step 2, on 12 of the last 19 bytes" in result.stdout
    assert f"{by_hand(TRAIN, VALID, 3):.3f}  a table of byte triples" in result.stdout
    assert f"{by_hand(TRAIN, VALID, 2):.3f}  a table of byte pairs" in result.stdout
    assert "•" in result.stdout
    assert str(tmp_path / "metrics.jsonl") in result.stdout


def test_a_missing_text_is_one_line_and_exit_2(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    result = command(tmp_path, tmp_path / "no.txt", tmp_path / "no.txt")
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and "no.txt" in result.stderr
    assert "Traceback" not in result.stderr
