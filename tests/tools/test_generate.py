# SPDX-License-Identifier: Apache-2.0
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_core.config.data import DataConfig
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, LLAMA, save
from tests.rank_pool import ranks
from tools.generate import main, parse_arguments, run

BYTES = DataConfig(tokenizer_type="ByteTokenizer")
TOOL = Path(__file__).parents[2] / "tools" / "generate.py"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(save(tmp_path / "run", replace(LLAMA, vocab_size=257), BYTES, dtype=torch.float32))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_one_prompt_is_streamed_and_several_are_shown(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [checkpoint, "--greedy", "--max-new-tokens", "6"]
    assert main([*flags, "--prompt", "Hello"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("Hello") and shown.out.endswith("\n") and shown.err.startswith("6 tokens in ")
    assert main([*flags, "--prompt", "Hello", "--prompt", "a"]) == 0
    both = capsys.readouterr().out
    assert both.startswith(f"== 0\n{shown.out}== 1\na")


@ranks({"tp": 2, "pp": 2}, {"dp": 2})
def same_texts(ctx: ParallelContext, words: list[str], output: str) -> None:
    path = Path(f"{output}-tp{ctx.tp.size}-dp{ctx.dp.size}")
    run(parse_arguments([*words, "--output", str(path)]), ctx)


def test_the_same_lines_at_every_layout(checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello"}\n\n{"prompt": "é", "id": 3}\n{"prompt": "abc"}\n')
    words = [checkpoint, "--prompts-file", str(tmp_path / "prompts.jsonl"), "--max-new-tokens", "6", "--top-p", "0.9"]
    assert main([*words, "--output", str(tmp_path / "out.jsonl")]) == 0
    expected = lines_of(tmp_path / "out.jsonl")
    assert [line["prompt"] for line in expected] == ["Hello", "é", "abc"]
    assert all(len(line["tokens"]) == len(line["log_probabilities"]) == 6 for line in expected)
    assert expected[0]["stopped"] == "length"
    for layout in ({"tp": 2, "pp": 2}, {"dp": 2}):
        same_texts(layout, words=words, output=str(tmp_path / "out"))
    for name in ("out-tp2-dp1", "out-tp1-dp2"):
        assert [line["text"] for line in lines_of(tmp_path / name)] == [line["text"] for line in expected]


def test_ends_are_not_shown(checkpoint: str, tmp_path: Path) -> None:
    words = [checkpoint, "--greedy", "--prompt", "Hello", "--max-new-tokens", "6", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    (whole,) = lines_of(tmp_path / "out")
    third = whole["tokens"][2]
    assert main([*words, "--end-id", str(third)]) == 0
    (ended,) = lines_of(tmp_path / "out")
    assert ended["stopped"] == "end" and ended["tokens"] == whole["tokens"][: whole["tokens"].index(third) + 1]
    assert ended["text"] == bytes(ended["tokens"][:-1]).decode(errors="replace")
    assert main([*words, "--end-id", str(third), "--ignore-end"]) == 0
    assert lines_of(tmp_path / "out") == [whole]


def test_prompts_from_lines_and_from_standard_input(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [checkpoint, "--max-new-tokens", "1", "--output", str(tmp_path / "out")]
    (tmp_path / "prompts.txt").write_text("one\ntwo words\n")
    assert main([*words, "--prompts-file", str(tmp_path / "prompts.txt")]) == 0
    assert [line["prompt"] for line in lines_of(tmp_path / "out")] == ["one", "two words"]
    monkeypatch.setattr("sys.stdin", io.StringIO("three\n"))
    assert main(words) == 0
    assert [line["prompt"] for line in lines_of(tmp_path / "out")] == ["three"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", ""], "prompt 0 is empty: give a text, or --bos-id for the id that begins one"),
        (["--prompt", "a", "--bos-id", "900"], "prompt 0 has the id 900; the model has 0 to 256"),
        (["--prompt", "a", "--top-k", "0"], "--top-k is 0; it must be at least 1"),
        (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens is 0; it must be at least 1"),
        (["--prompt", "a", "--prompts-file", "x.txt"], "--prompt and --prompts-file exclude each other"),
        (["--prompts-file", "/nowhere.txt"], "/nowhere.txt cannot be read"),
        (["--prompt", "a", "--output", "/nowhere/out"], "--output /nowhere/out cannot be written"),
        (["--prompt", "a", "--tensor-model-parallel-size", "2"], "1 ranks are no multiple of tp 2 x pp 1 = 2"),
        (
            ["--prompt", "a", "--tokenizer-model", "/x"],
            "--tokenizer-model /x: the checkpoint's ByteTokenizer",
        ),
    ],
)
def test_bad_input_is_one_line(
    checkpoint: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code = main([checkpoint, "--max-new-tokens", "1", *words])
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_files_that_hold_no_prompts(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.jsonl"
    for text, message in (
        ('{"prompt": "a"}\n{"text": "b"}\n', f'{path}, line 2: not a JSON object with a text under "prompt"'),
        ('["prompt"]', f"{path}, line 1: not a JSON object"),
        ("\n", f"{path} holds no prompt"),
    ):
        path.write_text(text)
        assert main([checkpoint, "--prompts-file", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")


def test_too_long_for_learned_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, replace(GPT2, vocab_size=257), BYTES)
    assert main([str(path), "--prompt", "a" * 9, "--max-new-tokens", "8"]) == 2
    assert "prompt 0 has 9 tokens, 17 with --max-new-tokens 8, but the model has 16" in capsys.readouterr().err


def test_no_checkpoint_and_no_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--prompt", "a"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/none holds no checkpoint\n"
    data = DataConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model="/gone/tokenizer.json")
    assert main([str(save(tmp_path, GPT2, data)), "--prompt", "a"]) == 2
    assert capsys.readouterr().err.startswith("error: /gone/tokenizer.json: no such file")


def test_from_the_shell(checkpoint: str) -> None:
    """Without a tokenizer's library or a launcher's variables, text to standard output alone."""
    words = [sys.executable, str(TOOL), checkpoint, "--greedy", "--max-new-tokens", "3"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "SLURM"))}
    done = subprocess.run(words, input="ab\n", capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ab") and "tokens in" not in done.stdout
