# SPDX-License-Identifier: Apache-2.0
"""Directories of checkpoints: <root>/step_00001000/ with rank files and, once all are on the disk, manifest.json.

A directory without a manifest does not exist. Directories are never renamed; a manifest is renamed into place, and at
no moment is there less than before: files of a new save of a step have other names than those of the old one.
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from megatron_core.checkpoint.files import naming, opened, read_exactly, sync_directory, write_file
from megatron_core.checkpoint.manifest import FILE_NAME, Manifest
from megatron_core.checkpoint.manifest_json import decode_manifest, encode_manifest
from megatron_core.errors import CheckpointError

_STEP = re.compile(r"step_([0-9]{8,18})")
_RANK_FILE = re.compile(r"rank_[0-9]{5,}(?:_([0-9]{1,9}))?\.safetensors")
_UNFINISHED = f"{FILE_NAME}.tmp"
_MAX_MANIFEST_BYTES = 2**29  # that of a model of 10^12 parameters has a tenth of it


def step_directory(root: Path, step: int) -> Path:
    """Directory of one step."""
    return root / f"step_{step:08d}"


def steps_present(root: Path) -> list[int]:
    """Steps that have a directory, usable or not, in order of number. Empty where `root` does not exist."""
    with naming("list", root):
        names = os.listdir(root) if root.exists() else []
    found = (_STEP.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match and match[0] == f"step_{int(match[1]):08d}")


def finished_steps(root: Path) -> list[int]:
    """Steps that were ever finished, usable or not, in order of number."""
    return [step for step in steps_present(root) if has_manifest(root, step)]


def has_manifest(root: Path, step: int) -> bool:
    """Whether the directory of a step was ever finished: without a manifest it is the rest of an interrupted save."""
    return os.path.lexists(step_directory(root, step) / FILE_NAME)


def read_manifest(root: Path, step: int) -> Manifest:
    """The manifest of a step, with all its files there and of the right size.

    Raises CheckpointError, one line with the path, where the step is not usable. Blocks are checked as they are read.
    """
    directory = step_directory(root, step)
    _refuse_link(directory)
    if not has_manifest(root, step):
        raise CheckpointError(f"{directory} has no {FILE_NAME}: it was never finished")
    manifest = _decode(directory / FILE_NAME)
    if manifest.step != step:
        raise CheckpointError(f"{directory / FILE_NAME} is that of step {manifest.step}")
    for file in manifest.files:
        with opened(directory / file.name) as descriptor:
            size = os.fstat(descriptor).st_size
        if size != file.size:
            raise CheckpointError(f"{directory / file.name} has {size} bytes, but {file.size} were written")
    return manifest


def prepare(root: Path, step: int) -> int:
    """Make the directory of a step and clean the rest of an interrupted save; one rank calls, before any writes.

    Returns the attempt that the rank files' names must carry (`writer.rank_file_name`): not 0 where the step is there
    already, since that one stays whole until `publish`.
    """
    directory = step_directory(root, step)
    with naming("make", directory):
        directory.mkdir(parents=True, exist_ok=True)
    clean(root, step)
    return max((attempt for _, attempt in _rank_files(directory)), default=-1) + 1


def publish(root: Path, manifest: Manifest) -> None:
    """Make the files that all ranks have written and synchronised a checkpoint; one rank calls.

    Raises CheckpointError where something is missing or the disk refuses; what was there before then still is.
    """
    directory = step_directory(root, manifest.step)
    text = encode_manifest(manifest)
    with naming("write", directory / _UNFINISHED):
        (directory / _UNFINISHED).unlink(missing_ok=True)
    write_file(directory / _UNFINISHED, [text])
    sync_directory(root)  # the names of the directory and the rank files, before the one that promises them
    sync_directory(directory)
    with naming("write", directory / FILE_NAME):
        os.replace(directory / _UNFINISHED, directory / FILE_NAME)
    sync_directory(directory)
    clean(root, manifest.step)


def clean(root: Path, step: int) -> None:
    """Remove what an interrupted or failed save of a step left behind: files that no manifest names.

    Where there is a manifest that cannot be read, all rank files stay: who can read it may need them.
    """
    directory = step_directory(root, step)
    _refuse_link(directory)
    _remove(directory, [_UNFINISHED])
    kept: set[str] = set()
    if has_manifest(root, step):
        try:
            kept = {file.name for file in _decode(directory / FILE_NAME).files}
        except CheckpointError:
            return
    _remove(directory, [name for name, _ in _rank_files(directory) if name not in kept])


def discard(root: Path, step: int) -> None:
    """Undo a save that failed: its files free their space; a checkpoint of the same step that was there stays."""
    if not step_directory(root, step).exists():
        return
    if has_manifest(root, step):
        clean(root, step)
    else:
        delete(root, step)


def delete(root: Path, step: int) -> None:
    """Remove a checkpoint, manifest first, so that no half of it is ever taken for a whole. Other files stay."""
    directory = step_directory(root, step)
    _refuse_link(directory)
    _remove(directory, [FILE_NAME])
    sync_directory(directory)
    _remove(directory, [_UNFINISHED, *(name for name, _ in _rank_files(directory))])
    with naming("remove", directory):
        if not os.listdir(directory):
            directory.rmdir()


def _remove(directory: Path, names: Iterable[str]) -> None:
    for name in names:
        with naming("remove", directory / name):
            (directory / name).unlink(missing_ok=True)


def _rank_files(directory: Path) -> list[tuple[str, int]]:
    """Names of rank files with their attempts."""
    with naming("list", directory):
        found = (_RANK_FILE.fullmatch(name) for name in sorted(os.listdir(directory)))
    return [(match[0], int(match[1] or 0)) for match in found if match]


def _refuse_link(directory: Path) -> None:
    with naming("read", directory):
        mode = os.lstat(directory).st_mode
    if not stat.S_ISDIR(mode):
        what = "a symbolic link, and those are not followed here" if stat.S_ISLNK(mode) else "not a directory"
        raise CheckpointError(f"{directory} is {what}")


def _decode(path: Path) -> Manifest:
    text = _read_text(path)
    try:
        return decode_manifest(text)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _read_text(path: Path) -> bytes:
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > _MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{path} has {size} bytes; no manifest is larger than {_MAX_MANIFEST_BYTES}")
        text = bytearray(size)
        read_exactly(descriptor, path, 0, memoryview(text))
    return bytes(text)
