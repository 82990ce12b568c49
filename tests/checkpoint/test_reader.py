# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_core.checkpoint import reader as reader_module
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import Rectangle, cut, flat_range_to_rectangles, whole
from megatron_core.checkpoint.writer import Shard
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[CheckpointReader]:
    manifest = small_checkpoint.save(tmp_path)
    with CheckpointReader(step_directory(tmp_path, 3), manifest) as opened:
        yield opened


def test_any_rectangle(reader: CheckpointReader) -> None:
    for name, values in small_checkpoint.tensors().items():
        assert torch.equal(reader.load_rectangle(name, whole(values.shape), values.dtype), values), name
    matrix = small_checkpoint.tensors()["master/w"]
    for rows in [(0, 1), (2, 6)]:
        for columns in [(0, 10), (3, 4), (3, 8), (9, 10)]:
            wanted = Rectangle((rows[0], columns[0]), (rows[1], columns[1]))
            found = reader.load_rectangle("master/w", wanted, torch.float32)
            assert torch.equal(found, matrix[wanted.slices((0, 0))]), wanted


def test_into_a_flat_range(reader: CheckpointReader) -> None:
    """As a sharded optimizer reads: a range of the row-major order, as rectangles, each into its part."""
    flat = torch.zeros(23)
    at = 0
    for rectangle in flat_range_to_rectangles((6, 10), 17, 40):
        reader.fill(flat[at : at + rectangle.volume].view(rectangle.shape), "master/w", rectangle)
        at += rectangle.volume
    assert torch.equal(flat, small_checkpoint.tensors()["master/w"].reshape(-1)[17:40])


def test_into_memory_with_gaps(reader: CheckpointReader) -> None:
    values = small_checkpoint.tensors()["master/w"]
    target = torch.zeros(6, 2, 10)
    reader.fill(target[:, 1], "master/w", whole((6, 10)))
    assert torch.equal(target[:, 1], values) and not target[:, 0].any()


def test_casts_between_floats_only(reader: CheckpointReader) -> None:
    values = small_checkpoint.tensors()["master/w"]
    found = reader.load_rectangle("master/w", whole((6, 10)), torch.bfloat16)
    assert torch.equal(found, values.bfloat16())
    assert reader.load_rectangle("model/w", whole((6, 10)), torch.float64).dtype == torch.float64
    with pytest.raises(CheckpointError, match=r"step_00000003: tensor mask/w is bool, not torch\.float32"):
        reader.load_rectangle("mask/w", whole((6, 10)), torch.float32)


def test_what_is_not_there(reader: CheckpointReader) -> None:
    with pytest.raises(CheckpointError, match="holds no tensor model/none"):
        reader.load_rectangle("model/none", whole((1,)), torch.float32)
    for wanted in [Rectangle((0, 0), (7, 10)), Rectangle((0,), (6,))]:
        with pytest.raises(CheckpointError, match=r"tensor master/w has shape \(6, 10\), which has no \[0:"):
            reader.load_rectangle("master/w", wanted, torch.float32)


def test_reads_only_the_blocks_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 MiB in pieces of 16: rows from the middle touch two blocks; a damaged one elsewhere does not matter."""
    values = torch.randn(40, 2**18)
    shards = [
        Shard(name="w", shape=(40, 2**18), rectangle=part, values=values[part.slices((0, 0))])
        for part in cut(whole((40, 2**18)), 16 * 2**18)
    ]
    manifest = small_checkpoint.save(tmp_path, 3, [shards])
    path = step_directory(tmp_path, 3) / "rank_00000.safetensors"
    offset = manifest.tensors[0].pieces[0].offset
    with path.open("r+b") as file:
        file.seek(offset + 100)
        file.write(b"damage")
    lengths = []
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: lengths.append(len(to[0])) or preadv(fd, to, at))
    with CheckpointReader(path.parent, manifest) as reader:
        found = reader.load_rectangle("w", Rectangle((7, 5), (9, 99)), torch.float32)
        assert torch.equal(found, values[7:9, 5:99])
        assert sum(lengths) - 9 - offset == 8 * 2**20, "blocks 1 and 2 of the first piece"
        assert torch.equal(reader.load_rectangle("w", Rectangle((15, 0), (40, 2**18)), torch.float32), values[15:])
        with pytest.raises(CheckpointError, match=r"rank_00000\.safetensors: damaged: block 0 of a piece"):
            reader.load_rectangle("w", Rectangle((0, 9), (1, 10)), torch.float32)
        with pytest.raises(CheckpointError, match="damaged: block 0"):
            reader.load_rectangle("w", whole((40, 2**18)), torch.float32)
        with pytest.raises(CheckpointError, match="damaged: block 0"):
            reader.verify(manifest.tensors[0].pieces[0])
        reader.verify(manifest.tensors[0].pieces[1])


def test_whole_pieces_are_read_to_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same layout, same dtype: no byte is copied, so none is held twice."""
    values = torch.randn(24, 2**18)
    shards = [Shard(name="w", shape=(24, 2**18), rectangle=whole((24, 2**18)), values=values)]
    manifest = small_checkpoint.save(tmp_path, 3, [shards])
    target = torch.empty(24, 2**18)
    start, end = target.data_ptr(), target.data_ptr() + target.nbytes
    preadv, lengths = os.preadv, []

    def into_target(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        address = np.frombuffer(buffers[0], dtype=np.uint8).ctypes.data
        if start <= address < end:
            lengths.append(len(buffers[0]))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", into_target)
    with CheckpointReader(step_directory(tmp_path, 3), manifest) as reader:
        reader.fill(target, "w", whole((24, 2**18)))
    assert sum(lengths) == target.nbytes and torch.equal(target, values)


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_OPEN_FILES", 2)
    parts = [
        [Shard(name="w", shape=(5, 3), rectangle=whole((5, 3)).rows(0, n, n + 1), values=torch.full((1, 3), float(n)))]
        for n in range(5)
    ]
    manifest = small_checkpoint.save(tmp_path, 3, parts)
    before = len(os.listdir("/dev/fd"))
    with CheckpointReader(step_directory(tmp_path, 3), manifest) as reader:
        for _ in range(2):
            assert reader.load_rectangle("w", whole((5, 3)), torch.float32)[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert len(os.listdir("/dev/fd")) == before + 2
    assert len(os.listdir("/dev/fd")) == before


def test_a_file_that_changed_since_it_was_found(tmp_path: Path) -> None:
    manifest = small_checkpoint.save(tmp_path)
    directory = step_directory(tmp_path, 3)
    with (directory / "rank_00000.safetensors").open("ab") as file:
        file.write(b"x")
    with (
        CheckpointReader(directory, manifest) as reader,
        pytest.raises(CheckpointError, match=r"rank_00000\.safetensors has \d+ bytes, but \d+ were written"),
    ):
        reader.load_rectangle("model/norm", whole((5,)), torch.float64)
