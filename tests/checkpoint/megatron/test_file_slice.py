# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.megatron import file_slice
from megatron_core.checkpoint.megatron.file_slice import FileSlice
from megatron_core.errors import CheckpointError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"ab\ncd\nefgh")
    return path


def test_it_reads_its_part_alone(path: Path) -> None:
    part = FileSlice(path, 1, 7)
    assert (part.read(1), part.readline(), part.readline(), part.tell()) == (b"b", b"\n", b"cd\n", 5)
    assert (part.read(100), part.read(1), part.readline()) == (b"ef", b"", b"")
    assert (part.seek(-3, 2), part.read()) == (4, b"\nef")
    assert (part.seek(100), part.seek(-100, 1)) == (7, 0)


def test_links_are_followed(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    assert FileSlice(tmp_path / "link").read(2) == b"ab"


@pytest.mark.parametrize(("start", "length"), [(0, 11), (10, None), (11, None), (-1, 2), (0, 0)])
def test_bytes_that_are_not_there(path: Path, start: int, length: int | None) -> None:
    with pytest.raises(CheckpointError, match="has 10 bytes"):
        FileSlice(path, start, length)


def test_no_read_is_absurd(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FileSlice(path).read(2**62) == b"ab\ncd\nefgh"
    monkeypatch.setattr(file_slice, "_MOST", 4)
    with pytest.raises(CheckpointError, match="10 bytes in one piece where no tensor is"):
        FileSlice(path).read(2**62)
