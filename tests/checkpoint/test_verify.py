# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.verify import verify
from tests.checkpoint import small_checkpoint


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_all_bytes_are_read_and_good(tmp_path: Path) -> None:
    manifest = small_checkpoint.save(tmp_path)
    done: list[int] = []
    assert verify(step_directory(tmp_path, 3), manifest, done.append) == []
    assert sum(done) == sum(entry.nbytes for entry in manifest.tensors)


def test_each_flipped_bit_names_its_tensor_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    manifest = small_checkpoint.save(tmp_path)
    directory = step_directory(tmp_path, 3)
    hit = [next(entry for entry in manifest.tensors if entry.name == name) for name in ("master/w", "model/norm")]
    for entry in hit:
        flip(directory / entry.pieces[-1].file, entry.pieces[-1].offset)
    found = verify(directory, manifest, lambda nbytes: None)
    assert sorted(damage.tensors for damage in found) == [("master/w",), ("model/norm",)]
    for damage in found:
        assert "damaged" in damage.problem and "rank_0000" in damage.problem and "\n" not in damage.problem


def test_a_damaged_header_is_one_thing_that_hits_all_tensors_of_the_file(tmp_path: Path) -> None:
    manifest = small_checkpoint.save(tmp_path)
    directory = step_directory(tmp_path, 3)
    flip(directory / "rank_00001.safetensors", 20)
    (damage,) = verify(directory, manifest, lambda nbytes: None)
    assert "header" in damage.problem and damage.tensors == ("mask/w", "master/w", "model/w")
