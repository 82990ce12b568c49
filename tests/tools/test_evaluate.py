# SPDX-License-Identifier: Apache-2.0
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megatron_core.config.data import DataConfig
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, save
from tests.rank_pool import ranks
from tools.evaluate import main, parse_arguments, run

TOOL = Path(__file__).parents[2] / "tools" / "evaluate.py"
ROWS = [{"goal": f"Do {k}", "sol1": "so", "sol2": "or so", "label": k % 2} for k in range(5)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    model = replace(GPT2, vocab_size=257, seq_length=32, max_position_embeddings=48)
    return str(save(tmp_path / "run", model, DataConfig(tokenizer_type="ByteTokenizer"), dtype=torch.float64))


@pytest.fixture
def data(tmp_path: Path) -> str:
    folder = tmp_path / "data"
    (folder / "piqa").mkdir(parents=True)
    (folder / "piqa" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "words.jsonl").write_text("".join(f'{{"text": "It is {word}"}}\n' for word in ("so", "a", "not")))
    (folder / "text.txt").write_text("Some text that is longer than what the model reads at once.")
    return str(folder)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)


def words_of(checkpoint: str, data: str) -> list[str]:
    tasks = f"piqa,lambada={data}/words.jsonl"
    return [checkpoint, "--data", data, "--tasks", tasks, "--perplexity", f"{data}/text.txt", "--num-fewshot", "1"]


@ranks({"tp": 2, "pp": 2}, {"dp": 2})
def scored(ctx: ParallelContext, words: list[str], output: str) -> None:
    run(parse_arguments([*words, "--output", f"{output}-{ctx.tp.size}"]), ctx)


def numbers(path: Path) -> list[float]:
    found = json.loads(path.read_text())
    tasks = [each["value"] for task in found["tasks"].values() for each in task["metrics"].values()]
    return [*tasks, *(found["perplexity"][name] for name in ("per_token", "per_word", "per_byte", "bits_per_byte"))]


def test_the_same_numbers_at_every_layout(
    checkpoint: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = words_of(checkpoint, data)
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{checkpoint}, step 7, float64, context 32"
    assert shown[1].split() == ["task", "area", "questions", "shots", "metric", "value", "+-"]
    assert shown[2].startswith("piqa     commonsense reasoning          5      1  acc ")
    assert shown[4].startswith("lambada  completion prediction          3      1  perplexity ")
    assert shown[-1].startswith(f"perplexity of {data}/text.txt: ")
    assert shown[-1].endswith("59 tokens, 12 words, 59 bytes, 1 documents, stride 16")
    for layout in ({"tp": 2, "pp": 2}, {"dp": 2}):
        scored(layout, words=words, output=str(tmp_path / "out"))
    for name in ("out-2", "out-1"):
        assert numbers(tmp_path / name) == pytest.approx(numbers(tmp_path / "out"), rel=1e-10)
    found: dict[str, Any] = json.loads((tmp_path / "out").read_text())
    assert found["tasks"]["piqa"]["questions"] == 5 and found["tasks"]["piqa"]["num_fewshot"] == 1
    assert found["perplexity"]["per_token"] == pytest.approx(2 ** found["perplexity"]["bits_per_byte"])


def test_flags_that_change_what_is_asked(checkpoint: str, data: str, tmp_path: Path) -> None:
    with IndexedWriter(str(tmp_path / "tokens"), np.dtype(np.uint16)) as writer:
        for length in (7, 9):
            writer.add_document(np.array([*range(65, 64 + length), 256]))
    words = [checkpoint, "--output", str(tmp_path / "out"), "--limit", "1"]
    tokens = ["--perplexity", str(tmp_path / "tokens"), "--stride", "3"]
    assert main([*words, *tokens, "--tasks", f"piqa={data}/piqa/validation.jsonl"]) == 0
    found = json.loads((tmp_path / "out").read_text())
    assert found["tasks"]["piqa"]["questions"] == 1
    assert found["tasks"]["piqa"]["metrics"]["acc"]["standard_error"] is None
    assert [found["perplexity"][name] for name in ("tokens", "bytes", "documents", "stride")] == [7, 6, 1, 3]
    first = found["perplexity"]["log_probability"]
    for more, same in ((["--max-length", "48"], True), (["--max-length", "4"], False), (["--bos-id", "1"], False)):
        assert main([*words, *tokens, *more]) == 0
        other = json.loads((tmp_path / "out").read_text())["perplexity"]["log_probability"]
        assert math.isclose(other, first, rel_tol=1e-10) is same
    assert main([*words, *tokens, "--dtype", "bfloat16"]) == 0
    assert json.loads((tmp_path / "out").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to do: give --tasks, --perplexity or --lm-eval-tasks"),
        (["--tasks", "pika"], "there is no task 'pika': known are lambada, "),
        (["--tasks", "wic", "--data", "{data}"], "task wic: no wic/dev.jsonl or "),
        (["--tasks", "piqa={data}/words.jsonl"], "{data}/words.jsonl:1: no field goal; there are text"),
        (["--tasks", "piqa", "--data", "{data}", "--limit", "0"], "--limit is 0; it must be at least 1"),
        (["--tasks", "piqa", "--data", "{data}", "--num-fewshot", "5"], "5 rows to draw 5 examples from: "),
        (["--perplexity", "{data}/none"], "{data}/none: no such file, and no {data}/none.idx"),
        (["--perplexity", "{data}/text.txt", "--stride", "33"], "--stride is 33, more than the 32 tokens of a window"),
        (["--perplexity", "{data}/text.txt", "--max-length", "49"], "--max-length is 49, but the model has 48 positio"),
        (["--perplexity", "{data}/text.txt", "--output", "{data}"], "--output {data} cannot be written: "),
        (["--perplexity", "{data}/empty.txt"], "--perplexity {data}/empty.txt holds no token that could be scored"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, checkpoint: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(data) / "empty.txt").write_text("")
    assert main([checkpoint, *(word.format(data=data) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message.format(data=data)}") and error.count("\n") == 1


def test_from_the_shell(data: str) -> None:
    words = [sys.executable, str(TOOL), f"{data}/none", "--tasks", "piqa", "--data", data]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
