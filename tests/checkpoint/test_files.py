# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest

from megatron_core.checkpoint import files
from megatron_core.checkpoint.files import opened, read_exactly, sync_directory, write_file
from megatron_core.errors import CheckpointError


def test_write_and_read_a_part(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_file(path, [b"abc", memoryview(b"defgh"), b""])
    sync_directory(tmp_path)
    buffer = bytearray(4)
    with opened(path) as descriptor:
        read_exactly(descriptor, path, 2, memoryview(buffer))
    assert buffer == b"cdef"


def test_a_file_that_ends_too_early(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with (
        opened(tmp_path / "x") as descriptor,
        pytest.raises(CheckpointError, match="/x ends at byte 3, 6 bytes too early"),
    ):
        read_exactly(descriptor, tmp_path / "x", 1, memoryview(bytearray(8)))


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name, message in [
        ("link", "link is a symbolic link"),
        ("pipe", "pipe is not a regular file"),
        ("none", "cannot read .*none: No such file"),
        (".", "is not a regular file"),
    ]:
        with pytest.raises(CheckpointError, match=message), opened(tmp_path / name):
            raise AssertionError(f"{name} was opened")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_file(tmp_path / "x", [b"old"])
    with pytest.raises(CheckpointError, match=r"cannot write .*/x: File exists"):
        write_file(tmp_path / "x", [b"new"])
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CheckpointError, match=r"^cannot write .*/x: No space left on device$"):
        write_file(tmp_path / "x", [b"a"])


def test_short_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    write_file(tmp_path / "x", [b"abcdefgh"])
    assert (tmp_path / "x").read_bytes() == b"abcdefgh"


def test_the_disk_gets_to_work_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte but the last few is handed over once while the file is written."""
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(files, "_WRITEBACK_BYTES", 10)
    monkeypatch.setattr(os, "posix_fadvise", lambda _, start, length, how: ranges.append((start, length)))
    write_file(tmp_path / "x", [b"abcd"] * 8)
    assert ranges == [(0, 12), (12, 12)]
    assert (tmp_path / "x").read_bytes() == b"abcd" * 8
