# SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint import average as average_module
from megatron_core.checkpoint.average import average, open_sources, work_bytes
from megatron_core.checkpoint.directory import read_manifest, step_directory, steps_present
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.writer import Shard
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint


def save(root: Path, step: int, tensors: Mapping[str, torch.Tensor]) -> tuple[Path, int]:
    """A checkpoint in two files, as a run of two ranks leaves it."""
    parts: list[list[Shard]] = [[], []]
    for name, values in tensors.items():
        rectangle = whole(values.shape)
        half = values.shape[0] // 2
        for part, (start, stop) in zip(parts, ((0, half), (half, values.shape[0]))):
            cut = rectangle.rows(0, start, stop)
            part.append(Shard(name=name, shape=tuple(values.shape), rectangle=cut, values=values[start:stop]))
    small_checkpoint.save(root, step, parts)
    return root, step


def load(root: Path, manifest: Manifest) -> dict[str, torch.Tensor]:
    with CheckpointReader(step_directory(root, manifest.step), manifest) as reader:
        return {
            entry.name: reader.load_rectangle(entry.name, whole(entry.shape), getattr(torch, entry.dtype))
            for entry in manifest.tensors
        }


def mixed(seed: int) -> dict[str, torch.Tensor]:
    """A 16-bit run's weights, with what belongs to the optimizer."""
    torch.manual_seed(seed)
    master = torch.randn(8, 5)
    return {"model/w": master.bfloat16(), "master/w": master, "adam_m/w": torch.randn(8, 5)}


def test_the_mean_of_masters_and_its_cast(tmp_path: Path) -> None:
    steps = [save(tmp_path, step, mixed(step)) for step in (3, 5, 4)]
    done: list[int] = []
    sources = open_sources(steps, [1, 2, 5])
    manifest = average(sources, tmp_path / "out", done.append)
    assert read_manifest(tmp_path / "out", 5) == manifest
    assert (manifest.step, manifest.state, manifest.config) == (5, small_checkpoint.STATE, small_checkpoint.CONFIG)
    found = load(tmp_path / "out", manifest)
    masters = {step: mixed(step)["master/w"].double() for step in (3, 4, 5)}
    expected = (masters[3] * 1 / 8 + masters[4] * 5 / 8 + masters[5] * 2 / 8).float()
    assert found.keys() == {"model/w", "master/w"}
    assert torch.equal(found["master/w"], expected)
    assert torch.equal(found["model/w"], expected.bfloat16())
    assert sum(done) == work_bytes(sources)


def test_weights_alone_with_another_dtype_among_them(tmp_path: Path) -> None:
    wide, narrow = mixed(3), mixed(4)
    steps = [save(tmp_path, 3, {"model/w": wide["master/w"]}), save(tmp_path, 4, narrow)]
    found = load(tmp_path / "out", average(open_sources(steps, None), tmp_path / "out", lambda nbytes: None))
    expected = ((wide["master/w"].double() + narrow["master/w"].double()) / 2).float().bfloat16()
    assert found.keys() == {"model/w"} and torch.equal(found["model/w"], expected)


def test_small_parts_and_many_files_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [save(tmp_path, step, mixed(step)) for step in (3, 4)]
    whole_files = average(open_sources(steps, None), tmp_path / "a", lambda nbytes: None)
    monkeypatch.setattr(average_module, "_PART_BYTES", 64)
    monkeypatch.setattr(average_module, "_FILE_BYTES", 100)
    small_files = average(open_sources(steps, None), tmp_path / "b", lambda nbytes: None)
    assert len(whole_files.files) == 1 and len(small_files.files) == 2
    a, b = load(tmp_path / "a", whole_files), load(tmp_path / "b", small_files)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_sums_are_wide(tmp_path: Path) -> None:
    values = [torch.full((2,), value) for value in (1e8, 1.0, -1e8)]
    steps = [save(tmp_path, step, {"model/w": value}) for step, value in enumerate(values, 1)]
    found = load(tmp_path / "out", average(open_sources(steps, None), tmp_path / "out", lambda nbytes: None))
    assert found["model/w"].tolist() == pytest.approx([1 / 3] * 2, rel=1e-6)


def test_what_differs_in_shape_is_listed_and_nothing_written(tmp_path: Path) -> None:
    ones = torch.ones
    steps = [
        save(tmp_path, 3, {"model/a": ones(2), "model/b": ones(2), "model/old": ones(2)}),
        save(tmp_path, 4, {"model/a": ones(4), "model/b": ones(2), "model/new": ones(2)}),
    ]
    with pytest.raises(CheckpointError) as caught:
        open_sources(steps, None)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["a", "new", "old"]
    assert "(2,) in" in lines[1] and "(4,) in" in lines[1] and "missing in" in lines[2]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0], "1 weights for 2 checkpoints"),
        ([1.0, -1.0], "make no mean"),
        ([0.0, 0.0], "make no mean"),
        ([1.0, math.nan], "make no mean"),
    ],
)
def test_weights_that_make_no_mean(tmp_path: Path, weights: list[float], message: str) -> None:
    steps = [save(tmp_path, step, mixed(step)) for step in (3, 4)]
    with pytest.raises(CheckpointError, match=message):
        open_sources(steps, weights)


def test_no_checkpoint_is_taken_twice_written_over_or_taken_without_weights(tmp_path: Path) -> None:
    step = save(tmp_path, 3, mixed(3))
    with pytest.raises(CheckpointError, match="given twice"):
        open_sources([step, step], None)
    with pytest.raises(CheckpointError, match="there already: give another --output"):
        average(open_sources([step], None), tmp_path, lambda nbytes: None)
    assert read_manifest(tmp_path, 3)
    with pytest.raises(CheckpointError, match="holds no weights"):
        open_sources([save(tmp_path, 4, {"adam_m/w": torch.ones(2)})], None)


def test_a_damaged_or_unfit_source_leaves_nothing(tmp_path: Path) -> None:
    steps = [save(tmp_path, 3, mixed(3)), save(tmp_path, 4, mixed(4) | {"master/w": torch.full((8, 5), math.nan)})]
    out = tmp_path / "out"
    with pytest.raises(CheckpointError, match=r"step_00000004: master/w has weights that are not finite"):
        average(open_sources(steps, None), out, lambda nbytes: None)
    assert steps_present(out) == []
    master = next(entry for entry in read_manifest(tmp_path, 3).tensors if entry.name == "master/w").pieces[0]
    path = step_directory(tmp_path, 3) / master.file
    data = bytearray(path.read_bytes())
    data[master.offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"):
        average(open_sources(steps[:1], None), out, lambda nbytes: None)
    assert steps_present(out) == []


def test_what_does_not_read_back_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = save(tmp_path, 3, mixed(3))
    write = average_module.write_rank_file

    def write_badly(directory: Path, name: str, shards: list[Shard]) -> object:
        written = write(directory, name, shards)
        path = directory / name
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
        return written

    monkeypatch.setattr(average_module, "write_rank_file", write_badly)
    with pytest.raises(CheckpointError, match="does not read back as it was written"):
        average(open_sources([step], None), tmp_path / "out", lambda nbytes: None)
    assert steps_present(tmp_path / "out") == []
