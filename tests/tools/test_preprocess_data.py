# SPDX-License-Identifier: Apache-2.0
"""The command as a user runs it: formats, bad input, workers, and what it leaves behind."""

import gzip
import io
import json
import lzma
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import zstandard

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.indexed_file import IndexedFile
from tests.data.tokenizer_files import byte_level_bpe

TOOL = Path(__file__).parents[2] / "tools" / "preprocess_data.py"
BYTES = ("--tokenizer-type", "ByteTokenizer", "--workers", "1")


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command; within this process where it needs no other, which saves its start-up."""
    command = [str(word) for word in words]
    if "--workers 1" in " ".join(command):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = runpy.run_path(str(TOOL))["main"](command)
            except SystemExit as ended:
                code = int(str(ended.code))
        return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, words)], capture_output=True, text=True, timeout=100, check=False
    )


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def documents(prefix: Path) -> list[str]:
    file, tokenizer = IndexedFile(prefix), ByteTokenizer()
    return [tokenizer.decode(file.read(i)) for i in range(file.num_sequences)]


def test_lengths_count_the_end_of_document(tmp_path: Path) -> None:
    """Texts of 5, 1 and 7 tokens: lengths 6, 2, 8, and 32 bytes."""
    source = write_jsonl(tmp_path / "a.jsonl", ["abcde", "f", "ghijklm"])
    done = run("--input", source, "--output_prefix", tmp_path / "out", "--append_eod", *BYTES)
    assert done.returncode == 0, done.stderr
    file = IndexedFile(tmp_path / "out_text_document")
    assert file.lengths.tolist() == [6, 2, 8]
    assert (tmp_path / "out_text_document.bin").stat().st_size == 32
    assert all(file.read(i)[-1] == 256 for i in range(3))
    assert "3 documents" in done.stdout and "MB/s" in done.stdout


def test_bad_lines_with_one_and_four_workers(tmp_path: Path) -> None:
    good = {"text": "good"}
    huge = {"text": "x" * 20_000_000}
    lines = [
        b'{"text": ""}',
        json.dumps(good).encode(),
        b'{"text": "brok',
        b'{"text": "\xff\xfe"}',
        b'{"words": "no text"}',
        json.dumps({"text": "emoji 🎉 and nul \x00"}).encode(),
        json.dumps(huge).encode(),
        b'{"text": "cut of',
    ]
    source = tmp_path / "bad.jsonl"
    source.write_bytes(b"\n".join(lines))
    stopped = run("--input", source, "--output-prefix", tmp_path / "stop", *BYTES)
    assert stopped.returncode == 2
    assert f"{source}:3: not JSON" in stopped.stderr and "Traceback" not in stopped.stderr
    assert list(tmp_path.iterdir()) == [source]
    results = []
    for workers in ("1", "4"):
        prefix = tmp_path / f"skip{workers}"
        done = run(
            *("--input", source, "--output-prefix", prefix, "--on-bad-line", "skip"),
            *("--tokenizer-type", "ByteTokenizer", "--workers", workers),
        )
        assert done.returncode == 0, done.stderr
        for number in (3, 4, 5, 8):
            assert f"bad.jsonl:{number}:" in done.stderr
        assert "left out: 1 empty documents, 4 bad lines" in done.stdout
        results.append([Path(f"{prefix}_text_document.{end}").read_bytes() for end in ("bin", "idx")])
        assert documents(Path(f"{prefix}_text_document")) == ["good", "emoji 🎉 and nul \x00", huge["text"]]
    assert results[0] == results[1]


def test_order_is_kept_over_many_chunks_and_workers(tmp_path: Path) -> None:
    texts = [f"{i} " + "abc" * (i % 700) for i in range(12000)]
    source = write_jsonl(tmp_path / "many.jsonl", texts)
    done = run(
        "--input", source, "--output-prefix", tmp_path / "many", "--tokenizer-type", "ByteTokenizer", "--workers", "3"
    )
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "many_text_document") == texts


def test_every_format_gives_the_same_documents(tmp_path: Path) -> None:
    texts = ["one", "two\n\nwith a gap", "drei ü"]
    plain = write_jsonl(tmp_path / "a.jsonl", texts)
    data = plain.read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(data))
    zstd = zstandard.ZstdCompressor()
    (tmp_path / "d.jsonl.zst").write_bytes(zstd.compress(data[:20]) + zstd.compress(data[20:]))
    (tmp_path / "e.json").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n\r\n"))
    done = run("--input", tmp_path / "*.json*", "--output-prefix", tmp_path / "out", *BYTES)
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "out_text_document") == texts * 5


def test_plain_text_is_a_document_a_file_or_a_block(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first block\nsecond line\n\n \nsecond block\n")
    (tmp_path / "b.txt").write_text("other file")
    words = ("--input", tmp_path / "a.txt", tmp_path / "b.txt", *BYTES, "--output-prefix")
    assert run(*words, tmp_path / "files").returncode == 0
    assert documents(tmp_path / "files_text_document") == [
        "first block\nsecond line\n\n \nsecond block\n",
        "other file",
    ]
    assert run(*words, tmp_path / "blocks", "--split-text-on-blank-lines").returncode == 0
    assert documents(tmp_path / "blocks_text_document") == ["first block\nsecond line", "second block\n", "other file"]


def test_several_keys_make_several_data_sets(tmp_path: Path) -> None:
    source = tmp_path / "keys.jsonl"
    source.write_text('{"title": "a", "body": "b"}\n{"title": "", "body": "c"}\n')
    done = run("--input", source, "--output-prefix", tmp_path / "out", "--json-keys", "title", "body", *BYTES)
    assert done.returncode == 0, done.stderr
    assert documents(tmp_path / "out_title_document") == ["a"]
    assert documents(tmp_path / "out_body_document") == ["b", "c"]


def test_text_that_looks_like_a_special_token_stays_text(tmp_path: Path) -> None:
    byte_level_bpe(["<|endoftext|>"]).save(str(tmp_path / "tokenizer.json"))
    text = "about <|endoftext|> and <|endoftext|>"
    source = write_jsonl(tmp_path / "a.jsonl", [text, text])
    done = run(
        *("--input", source, "--output-prefix", tmp_path / "out", "--append-eod", "--workers", "1"),
        *("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", tmp_path),
    )
    assert done.returncode == 0, done.stderr
    file = IndexedFile(tmp_path / "out_text_document")
    tokens = file.read_tokens(0, file.num_tokens)
    assert int((tokens == 0).sum()) == file.num_documents == 2
    tokenizer = byte_level_bpe(["<|endoftext|>"])
    assert tokenizer.decode(file.read(0)[:-1].tolist(), skip_special_tokens=False) == text


def test_null_tokenizer_and_wide_ids(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["1 2 70000", "3"])
    words = ("--input", source, "--output-prefix", tmp_path / "out", "--append-eod", "--workers", "1")
    done = run(*words, "--tokenizer-type", "NullTokenizer", "--vocab-size", "131072")
    assert done.returncode == 0, done.stderr
    file = IndexedFile(tmp_path / "out_text_document")
    assert file.dtype == np.int32
    assert [file.read(i).tolist() for i in range(2)] == [[1, 2, 70000, 131072], [3, 131072]]
    refused = run(*words, "--tokenizer-type", "NullTokenizer", "--vocab-size", "100")
    assert (
        refused.returncode == 2 and "a.jsonl:1: NullTokenizer: '70000' is not a number from 0 to 100" in refused.stderr
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "no such file"),
        ("empty.jsonl", b"", "nothing to write for the key 'text'"),
        ("blank.jsonl", b'{"text": ""}\n', "1 empty documents"),
        ("list.jsonl", b"[1]\n", "list.jsonl:1: a JSON list, not an object"),
        ("null.jsonl", b'{"text": null}\n', "null.jsonl:1: no text under the key 'text'"),
        ("cut.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99, mtime=0)[:-9], "cut.jsonl.gz: cannot read"),
        ("cut.jsonl.xz", lzma.compress(b'{"text": "a"}\n' * 99)[:-9], "cut.jsonl.xz: cannot read"),
        ("cut.jsonl.zst", zstandard.compress(os.urandom(999))[:-9], "cut.jsonl.zst: cannot read"),
        ("no.jsonl.zst", b"plain text", "no.jsonl.zst: cannot read"),
        ("latin.txt", b"line\ncaf\xe9\n", "latin.txt:2: not UTF-8"),
        ("data.csv", b"a,b", "unknown type of file"),
    ],
)
def test_bad_input_is_one_message_and_leaves_nothing(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    done = run("--input", tmp_path / name, "--output-prefix", tmp_path / "out", *BYTES)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_flags_are_checked(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["a"])
    words = ("--input", source, "--output-prefix", tmp_path / "out")
    assert "--tokenizer-type" in run(*words).stderr
    assert run(*words, *BYTES, "--no-such-flag").returncode == 2
    assert run(*words, "--tokenizer-type", "ByteTokenizer", "--workers", "0").returncode == 2
    done = run(*words, "--tokenizer-type", "GPT2BPETokenizer")
    assert done.returncode == 2 and "needs --vocab-file and --merge-file" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: int) -> None:
    """Numbers as text take long enough to be interrupted in the middle."""
    source = tmp_path / "corpus.jsonl"
    source.write_text('{"text": "' + "7 " * 50_000 + '"}\n')
    source.write_text(source.read_text() * 400)
    words = ["--output-prefix", str(tmp_path / "out"), "--tokenizer-type", "NullTokenizer", "--vocab-size", "9"]
    command = [sys.executable, str(TOOL), "--input", str(source), *words, "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("out*.tmp"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == 130
        assert process.stderr is not None
        assert b"nothing was written" in process.stderr.read()
    assert list(tmp_path.iterdir()) == [source]
