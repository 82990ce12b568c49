# SPDX-License-Identifier: Apache-2.0
"""Chunks are whole documents, in order, with their line numbers."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from megatron_core.data.corpus_files import Chunk, find_inputs, read_chunks
from megatron_core.errors import DataError


def chunks(path: Path, split_blank_lines: bool = False) -> list[Chunk]:
    return list(read_chunks([path], ["text"], split_blank_lines=split_blank_lines))


def test_lines_are_never_cut_and_are_numbered(tmp_path: Path) -> None:
    lines = [b"%d:" % i + b"x" * (i * 37 % 40_000) for i in range(1, 1000)]
    lines[500] = b"501:" + b"y" * 5_000_000
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    got = chunks(path)
    assert len(got) > 5
    for chunk in got:
        assert chunk.payload.startswith(b"%d:" % chunk.first_line)
    assert b"".join(chunk.payload for chunk in got) == path.read_bytes()
    assert got[-1].bytes_read == path.stat().st_size
    assert [chunk.bytes_read for chunk in got] == sorted(chunk.bytes_read for chunk in got)


def test_text_comes_whole_or_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 100 + "\n\n" + ("more " * 100 + "\n\n") * 20_000)
    (whole,) = chunks(path)
    assert (whole.kind, whole.payload) == ("text", path.read_bytes())
    blocks = chunks(path, split_blank_lines=True)
    assert len(blocks) > 2
    assert all(block.payload.endswith(b"\n\n") for block in blocks)
    assert b"".join(block.payload for block in blocks) == path.read_bytes()


def test_inputs(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.txt.gz"):
        (tmp_path / name).write_bytes(b"")
    found = find_inputs([str(tmp_path / "*.jsonl"), str(tmp_path / "c.txt.gz")])
    assert [path.name for path in found] == ["a.jsonl", "b.jsonl", "c.txt.gz"]
    for pattern, message in (("*.parquet", "no such file"), ("d.csv", "no such file"), (".", "no such file")):
        with pytest.raises(DataError, match=message):
            find_inputs([str(tmp_path / pattern)])
    (tmp_path / "d.csv").write_bytes(b"")
    with pytest.raises(DataError, match="unknown type of file"):
        find_inputs([str(tmp_path / "d.csv")])


def test_parquet_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "a.parquet").write_bytes(b"")
    with pytest.raises(DataError, match="pip install pyarrow"):
        chunks(tmp_path / "a.parquet")


class FakeBatch:
    """Two rows."""

    num_rows = 2

    def to_pylist(self) -> list[dict[str, str]]:
        return [{"text": "a"}, {"text": "b"}]


class FakeParquetFile:
    """The few calls of pyarrow's ParquetFile that are used."""

    def __init__(self, path: Path) -> None:
        self.schema_arrow = self
        self.names = ["id", "text"]

    def __enter__(self) -> "FakeParquetFile":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def iter_batches(self, batch_size: int, columns: list[str]) -> Iterator[FakeBatch]:
        assert columns == ["text"]
        yield from (FakeBatch(), FakeBatch())


def test_parquet_rows_become_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    arrow.ArrowException = type("ArrowException", (Exception,), {})  # type: ignore[attr-defined]
    parquet.ParquetFile = FakeParquetFile  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", arrow)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    (tmp_path / "a.parquet").write_bytes(b"")
    got = chunks(tmp_path / "a.parquet")
    assert [(chunk.first_line, chunk.payload) for chunk in got] == [
        (1, b'{"text":"a"}\n{"text":"b"}\n'),
        (3, b'{"text":"a"}\n{"text":"b"}\n'),
    ]
