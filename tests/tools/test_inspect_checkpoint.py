# SPDX-License-Identifier: Apache-2.0
"""What the command says of checkpoints; of hostile ones, one line."""

from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.writer import Shard
from tests.checkpoint import small_checkpoint
from tools.inspect_checkpoint import main

Captured = pytest.CaptureFixture[str]


def flip(root: Path, manifest: Manifest, name: str) -> None:
    piece = next(entry for entry in manifest.tensors if entry.name == name).pieces[0]
    path = step_directory(root, manifest.step) / piece.file
    data = bytearray(path.read_bytes())
    data[piece.offset] ^= 1
    path.write_bytes(data)


def test_the_steps_of_a_run(tmp_path: Path, capsys: Captured) -> None:
    small_checkpoint.save(tmp_path, 3)
    step_directory(tmp_path, 4).mkdir()
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["step", "status", "size", "saved", "sections"]
    assert lines[2].split()[:2] == ["3", "usable"] and lines[2].endswith("adam_v mask master model")
    assert lines[3].split() == ["4", "unfinished", "0", "B", "-"]
    assert lines[4].startswith("unfinished: ") and "never finished" in lines[4]
    (step_directory(tmp_path, 3) / "rank_00000.safetensors").unlink()
    assert main([str(tmp_path)]) == 1
    assert "damaged: cannot read" in capsys.readouterr().out


def test_what_a_step_holds(tmp_path: Path, capsys: Captured) -> None:
    small_checkpoint.save(tmp_path)
    assert main([str(step_directory(tmp_path, 3)), "--tensors"]) == 0
    out = capsys.readouterr().out
    assert "step 3, saved 20" in out and "in 2 files" in out
    assert 'model: num_layers 2, normalization "LayerNorm"' in out
    assert "layout that wrote it: not said" in out
    assert "state: consumed_samples = 12" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["model", "2", "65", "bfloat16,", "float64", "160", "B"] in rows
    assert ["master/w", "float32", "6", "x", "10", "240", "B", "3"] in rows
    assert ["adam_v/scalar", "float32", "scalar", "4", "B", "1"] in rows


def test_verify(tmp_path: Path, capsys: Captured) -> None:
    manifest = small_checkpoint.save(tmp_path)
    assert main([str(tmp_path), "--verify"]) == 0
    assert "undamaged; 464 B read" in capsys.readouterr().out
    flip(tmp_path, manifest, "master/w")
    assert main([str(tmp_path), "--verify"]) == 1
    out = capsys.readouterr().out
    assert "DAMAGED: rank_00000.safetensors: damaged: block 0" in out and "(holds master/w)" in out
    assert "1 damaged places" in out


def test_compare(tmp_path: Path, capsys: Captured) -> None:
    for root in ("a", "b"):
        small_checkpoint.save(tmp_path / root)
    assert main([str(tmp_path / "a"), "--compare", str(tmp_path / "b")]) == 0
    assert "5 tensors equal, 0 differ in values, 0 in shape" in capsys.readouterr().out
    parts = [[part for part in shards if part.name != "adam_v/scalar"] for shards in small_checkpoint.shards()]
    index = next(i for i, part in enumerate(parts[0]) if part.name == "model/norm")
    norm = parts[0][index]
    parts[0][index] = Shard(name=norm.name, shape=norm.shape, rectangle=norm.rectangle, values=norm.values + 1)
    small_checkpoint.save(tmp_path / "c", parts=parts)
    assert main([str(step_directory(tmp_path / "a", 3)), "--compare", str(tmp_path / "c")]) == 1
    out = capsys.readouterr().out
    assert "tensor adam_v/scalar: only in the first" in out
    assert next(line.split() for line in out.splitlines() if line.startswith("model/norm"))[1:4] == ["5", "5", "1"]
    assert "3 tensors equal, 1 differ in values, 1 in shape" in out


def test_settings_that_differ(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    small_checkpoint.save(tmp_path / "a")
    monkeypatch.setattr(small_checkpoint, "STATE", {**small_checkpoint.STATE, "loss_scale": 2.0})
    small_checkpoint.save(tmp_path / "b")
    assert main([str(tmp_path / "a"), "--compare", str(tmp_path / "b")]) == 1
    out = capsys.readouterr().out
    assert "state loss_scale: 65536.0 in the first, 2.0 in the second" in out and "1 fields" in out


def test_one_tensor(tmp_path: Path, capsys: Captured) -> None:
    small_checkpoint.save(tmp_path)
    assert main([str(tmp_path), "--tensor", "master/w"]) == 0
    out = capsys.readouterr().out
    values = small_checkpoint.tensors()["master/w"]
    assert "master/w: float32, shape (6, 10), 240 B in 3 pieces" in out
    assert f"min {float(values.min()):.6g}" in out and f"norm {float(values.norm()):.6g}" in out
    assert "not finite: 0 NaN, 0 infinite" in out
    assert main([str(tmp_path), "--tensor", "w"]) == 2
    assert "holds no tensor 'w'; there is mask/w, master/w, model/w" in capsys.readouterr().err
    assert main([str(tmp_path), "--tensor", "\x1b[2J"]) == 2
    error = capsys.readouterr().err
    assert "--tensors lists all" in error and "\x1b" not in error


def test_not_usable_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "empty").mkdir()
    small_checkpoint.save(tmp_path, 3)
    (step_directory(tmp_path, 3) / "manifest.json").write_text("{}")
    cases = {
        "empty": "holds no step_* directory",
        "empty --verify": "holds no usable checkpoint",
        "absent --verify": "does not exist",
        "step_00000003": "not a manifest",
        "step_00000009": "step_00000009",
    }
    for words, message in cases.items():
        name, *flags = words.split()
        assert main([str(tmp_path / name), *flags]) == 2, words
        shown = capsys.readouterr()
        assert message in shown.err and shown.err.count("\n") == 1 and shown.out == "", words


def test_nothing_of_a_hostile_checkpoint_reaches_the_terminal_or_is_run(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_checkpoint, "CONFIG", {"model": {"num_layers": "\x1b[31m"}, "parallel": [1]})
    monkeypatch.setattr(small_checkpoint, "STATE", {"\x1b[2J": {"a": "\x07"}})
    small_checkpoint.save(tmp_path)
    assert main([str(tmp_path), "--tensors"]) == 0
    out = capsys.readouterr().out
    assert "\\u001b[31m" in out and not {"\x1b", "\x07"} & set(out)
    step_directory(tmp_path, 3).rename(tmp_path / "elsewhere")
    step_directory(tmp_path, 3).symlink_to(tmp_path / "elsewhere")
    assert main([str(step_directory(tmp_path, 3))]) == 2
    assert "symbolic link" in capsys.readouterr().err


def test_large_tensors_take_little_memory(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron_core.checkpoint import reader, stream

    values = torch.zeros(2**18)
    shard = Shard(name="x", shape=(2**18,), rectangle=small_checkpoint.whole(values.shape), values=values)
    small_checkpoint.save(tmp_path, parts=[[shard]])
    monkeypatch.setattr(stream, "PART_BYTES", 2**16)
    sizes = []
    load = reader.CheckpointReader.load_rectangle

    def measured(*arguments: object) -> torch.Tensor:
        part = load(*arguments)  # type: ignore[arg-type]
        sizes.append(part.nbytes)
        return part

    monkeypatch.setattr(reader.CheckpointReader, "load_rectangle", measured)
    assert main([str(tmp_path), "--tensor", "x"]) == 0
    assert sum(sizes) == values.nbytes + 6 * 4 and max(sizes) <= 2**16
