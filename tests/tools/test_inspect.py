# SPDX-License-Identifier: Apache-2.0
"""What the command says of a data set, of a checkpoint, and of what is none."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.indexed_writer import IndexedWriter
from tests.checkpoint import small_checkpoint

TOOL = Path(__file__).parents[2] / "tools" / "inspect.py"


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, words)], capture_output=True, text=True, timeout=60, check=False
    )


def test_contents_plan_and_text(tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    with IndexedWriter(tmp_path / "d", np.dtype(np.uint16)) as writer:
        for i in range(100):
            writer.add_document(np.append(tokenizer.encode(f"document {i:04} here"), tokenizer.eod))
    done = run(tmp_path / "d", "--tokenizer_type", "ByteTokenizer", "--seq-length", "10", "--train-samples", "474")
    assert done.returncode == 0, done.stderr
    assert "100 documents, 100 sequences, 1,900 tokens, stored as uint16" in done.stdout
    assert "mean 19.0; 0 %: 19" in done.stdout
    assert "1,900 tokens, 189 samples of 10 an epoch" in done.stdout
    assert "474 samples: 4,740 tokens, 2.51 epochs" in done.stdout
    assert "largest id seen: 256 of a vocabulary of 257: fits" in done.stdout
    assert "sequence 99 (19 tokens): 'document 0099 here'" in done.stdout
    plain = run(tmp_path / "d", "--samples", "1")
    assert "sequence 0 (19 tokens): 100 111 99" in plain.stdout


def test_a_wrong_tokenizer_is_noticed(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "d", np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([5, 400]))
    done = run(tmp_path / "d", "--tokenizer-type", "ByteTokenizer")
    assert done.returncode == 0
    assert "DOES NOT FIT" in done.stdout and "5 400" in done.stdout


def test_bad_paths_are_one_message(tmp_path: Path) -> None:
    done = run(tmp_path / "nothing")
    assert done.returncode == 2
    assert "no such file" in done.stderr and "Traceback" not in done.stderr
    (tmp_path / "x.idx").write_bytes(b"junk" * 20)
    done = run(tmp_path / "x")
    assert done.returncode == 2 and "not an .idx file" in done.stderr


def test_a_directory_is_a_checkpoint(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path)
    done = run(tmp_path, "--verify")
    assert done.returncode == 0, done.stderr
    assert "state: consumed_samples = 12" in done.stdout and "undamaged" in done.stdout


def test_both_kinds_are_in_the_help() -> None:
    done = run("--help")
    assert done.returncode == 0 and "inspect.py PREFIX" in done.stdout and "inspect.py CHECKPOINT" in done.stdout
    assert run().returncode == 2


def test_other_scripts_of_the_folder_still_get_the_standard_module(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(TOOL.parent)!r}); import inspect; print(inspect.signature(len))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "(obj, /)\n", done.stderr
