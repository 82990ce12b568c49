# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint import directory
from megatron_core.checkpoint.directory import (
    clean,
    delete,
    has_manifest,
    prepare,
    publish,
    read_manifest,
    step_directory,
    steps_present,
)
from megatron_core.checkpoint.manifest import merge
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.writer import write_rank_file
from megatron_core.errors import CheckpointError
from tests.checkpoint import small_checkpoint

FILES = ["manifest.json", "rank_00000.safetensors", "rank_00001.safetensors"]


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_a_published_step(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    manifest = small_checkpoint.save(root, 1000)
    assert names(root) == ["step_00001000"] and names(root / "step_00001000") == FILES
    assert read_manifest(root, 1000) == manifest


def test_steps_by_number(tmp_path: Path) -> None:
    assert steps_present(tmp_path / "none") == []
    for name in ["step_00000090", "step_00000100", "step_100000000", "step_7", "step_000000001", "other"]:
        (tmp_path / name).mkdir()
    assert steps_present(tmp_path) == [90, 100, 100_000_000]
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot list .*/file: Not a directory"):
        steps_present(tmp_path / "file")


def test_an_interrupted_save_does_not_exist_and_is_cleaned_by_the_next(tmp_path: Path) -> None:
    step = step_directory(tmp_path, 5)
    assert prepare(tmp_path, 5) == 0
    write_rank_file(step, "rank_00007.safetensors", small_checkpoint.shards()[0])
    (step / "manifest.json.tmp").write_text("half")
    (step / "notes.txt").write_text("mine")
    assert not has_manifest(tmp_path, 5)
    with pytest.raises(CheckpointError, match=r"step_00000005 has no manifest\.json: it was never finished"):
        read_manifest(tmp_path, 5)
    small_checkpoint.save(tmp_path, 5)
    assert names(step) == sorted([*FILES, "notes.txt"])


def test_an_older_save_of_the_step_is_whole_until_the_new_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_checkpoint.save(tmp_path, 5)
    step = step_directory(tmp_path, 5)
    attempt = prepare(tmp_path, 5)
    assert attempt == 1
    new = small_checkpoint.shards()[0][:0]
    written = [write_rank_file(step, f"rank_00000_{attempt}.safetensors", new)]
    assert read_manifest(tmp_path, 5).tensors, "the old one"
    manifest = merge(5, written, state={}, config={})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        with pytest.raises(CheckpointError, match=r"cannot write .*/manifest\.json: No space left on device"):
            publish(tmp_path, manifest)
    assert read_manifest(tmp_path, 5).tensors, "still the old one"
    publish(tmp_path, manifest)
    assert read_manifest(tmp_path, 5) == manifest
    assert names(step) == ["manifest.json", "rank_00000_1.safetensors"]
    assert prepare(tmp_path, 5) == 2


def no_space(*arguments: object) -> None:
    raise OSError(28, os.strerror(28))


def test_a_failed_save_gives_its_bytes_back(tmp_path: Path) -> None:
    """CKP-03: the disk fills up; what was there before still loads."""
    small_checkpoint.save(tmp_path, 4)
    step = step_directory(tmp_path, 5)
    prepare(tmp_path, 5)
    write_rank_file(step, "rank_00000.safetensors", small_checkpoint.shards()[0])
    clean(tmp_path, 5)
    assert names(step) == []
    small_checkpoint.save(tmp_path, 5)
    write_rank_file(step, "rank_00000_1.safetensors", small_checkpoint.shards()[0])
    clean(tmp_path, 5)
    assert names(step) == FILES
    read_manifest(tmp_path, 4)


def test_a_discarded_save_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    directory.discard(tmp_path, 3)  # not even a directory: it vanished under the save
    prepare(tmp_path, 3)
    write_rank_file(step_directory(tmp_path, 3), "rank_00000.safetensors", small_checkpoint.shards()[0])
    directory.discard(tmp_path, 3)
    assert steps_present(tmp_path) == []
    small_checkpoint.save(tmp_path)
    attempt = prepare(tmp_path, 3)
    name = f"rank_00000_{attempt}.safetensors"
    write_rank_file(step_directory(tmp_path, 3), name, small_checkpoint.shards()[0])
    directory.discard(tmp_path, 3)
    read_manifest(tmp_path, 3)
    assert not (step_directory(tmp_path, 3) / name).exists()


def test_an_unreadable_manifest_protects_its_files_until_replaced(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 5)
    path = step_directory(tmp_path, 5) / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"step":3', b'"step":2'))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged: its checksum does not match"):
        read_manifest(tmp_path, 5)
    clean(tmp_path, 5)
    assert names(path.parent) == FILES
    small_checkpoint.save(tmp_path, 5)
    assert names(path.parent) == ["manifest.json", "rank_00000_1.safetensors", "rank_00001_1.safetensors"]


def test_all_is_on_the_disk_before_the_manifest_promises_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    opened: dict[int, str] = {}
    real_open, real_fsync, real_replace = os.open, os.fsync, os.replace

    def watched_open(path: Path, *arguments: int, **keys: int) -> int:
        descriptor = real_open(path, *arguments, **keys)
        opened[descriptor] = Path(path).name
        return descriptor

    monkeypatch.setattr(os, "open", watched_open)
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(opened[fd]) or real_fsync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: events.append("replace") or real_replace(a, b))
    small_checkpoint.save(tmp_path / "root", 5)
    assert events == [
        "rank_00000.safetensors",
        "rank_00001.safetensors",
        "manifest.json.tmp",
        "root",
        "step_00000005",
        "replace",
        "step_00000005",
    ]


def test_a_save_that_lacks_bytes_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tensor mask/w: its pieces hold 42 of 60 elements"):
        small_checkpoint.save(tmp_path, 5, small_checkpoint.shards()[:1])
    assert not has_manifest(tmp_path, 5)


def test_files_are_there_and_as_large_as_written(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 5)
    path = step_directory(tmp_path, 5) / "rank_00001.safetensors"
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match=r"rank_00001\.safetensors has \d+ bytes, but \d+ were written"):
        read_manifest(tmp_path, 5)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*rank_00001\.safetensors: No such file"):
        read_manifest(tmp_path, 5)


def test_a_renamed_directory_is_noticed(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 5)
    (tmp_path / "step_00000005").rename(tmp_path / "step_00000006")
    with pytest.raises(CheckpointError, match=r"manifest\.json is that of step 5"):
        read_manifest(tmp_path, 6)


def test_deleting_takes_the_manifest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_checkpoint.save(tmp_path, 5)
    removed = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda self, **keys: removed.append(self.name) or unlink(self, **keys))
    delete(tmp_path, 5)
    assert removed[0] == "manifest.json" and names(tmp_path) == []


def test_deleting_leaves_what_is_not_ours(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 5)
    (step_directory(tmp_path, 5) / "notes.txt").write_text("mine")
    delete(tmp_path, 5)
    assert names(step_directory(tmp_path, 5)) == ["notes.txt"]


def test_links_are_not_followed(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path / "elsewhere", 5)
    root = tmp_path / "root"
    root.mkdir()
    (root / "step_00000005").symlink_to(tmp_path / "elsewhere" / "step_00000005")
    for act in (read_manifest, prepare, clean, delete):
        with pytest.raises(CheckpointError, match="step_00000005 is a symbolic link, and those are not followed here"):
            act(root, 5)
    assert names(tmp_path / "elsewhere" / "step_00000005") == FILES


def test_a_manifest_of_absurd_size_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_checkpoint.save(tmp_path, 5)
    monkeypatch.setattr(directory, "_MAX_MANIFEST_BYTES", 100)
    with pytest.raises(CheckpointError, match=r"manifest\.json has \d+ bytes; no manifest is larger than 100"):
        read_manifest(tmp_path, 5)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    small_checkpoint.save(tmp_path, 5)
    manifest = read_manifest(tmp_path, 5)
    with CheckpointReader(step_directory(tmp_path, 5), manifest) as reader:
        for name, values in small_checkpoint.tensors().items():
            assert torch.equal(reader.load_rectangle(name, whole(values.shape), values.dtype), values)
