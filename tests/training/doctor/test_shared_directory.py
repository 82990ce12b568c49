# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from megatron_core.training.doctor.exchange import Exchange
from megatron_core.training.doctor.shared_directory import check_shared_directory
from tests.training.doctor.thread_ranks import on_threads


def check(directories: list[Path], writers: list[int]) -> list[str] | None:
    """As if each rank's node had its own idea of the same path."""

    def one(exchange: Exchange) -> list[str] | None:
        return check_shared_directory(exchange, directories[exchange.rank], writers, patience_s=0.0)

    first, *others = on_threads(len(directories), one)
    assert others == [None] * len(others)
    for directory in directories:
        assert not directory.exists() or list(directory.iterdir()) == []
    return first


def test_seen_by_all(tmp_path: Path) -> None:
    assert check([tmp_path] * 3, [0, 2]) == ["", "", ""]


def test_a_node_with_a_directory_of_its_own(tmp_path: Path) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    own.mkdir()
    first, second, third = check([shared, own, shared], [0, 1]) or []
    assert first == third == ""
    assert second == f"does not see in {own} what rank 0 wrote there: No such file or directory"


def test_rank_0_cannot_write(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert check([absent, tmp_path], [0, 1]) == [f"cannot write to {absent}: No such file or directory", ""]


def test_a_node_whose_writes_get_lost(tmp_path: Path, monkeypatch) -> None:
    write = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda path, text: path.name.endswith("_1") or write(path, text))
    assert check([tmp_path] * 2, [0, 1]) == ["", f"writes to {tmp_path} what rank 0 does not see"]


def test_a_node_that_may_only_read(tmp_path: Path, monkeypatch) -> None:
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path.name.endswith("_1"):
            raise PermissionError(13, "Permission denied")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert check([tmp_path] * 2, [0, 1]) == ["", f"cannot write to {tmp_path}: Permission denied"]


def test_stale_contents(tmp_path: Path, monkeypatch) -> None:
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: "old" if path.name.endswith("_0") else read(path))
    second = (check([tmp_path] * 2, [0]) or [])[1]
    assert "reads 'old' in" in second and "where rank 0 wrote" in second
