# SPDX-License-Identifier: Apache-2.0
"""What lies in a directory of checkpoints: each step with what it is worth."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from megatron_core.checkpoint.directory import has_manifest, read_manifest, step_directory, steps_present
from megatron_core.checkpoint.files import naming
from megatron_core.checkpoint.manifest import FILE_NAME
from megatron_core.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class StepStatus:
    """One step directory."""

    step: int
    status: Literal["usable", "unfinished", "damaged"]
    """unfinished: without a manifest, the rest of an interrupted save."""
    nbytes: int
    """Of all files in it."""
    saved_at: float | None
    """When its manifest was written, in seconds since 1970; None where there is none."""
    sections: tuple[str, ...]
    """First parts of its tensors' names, in order; empty where it is not usable."""
    problem: str
    """Why it is not usable, one line; empty where it is."""


def list_steps(root: Path) -> list[StepStatus]:
    """All steps in order of number. Blocks are not read. Raises CheckpointError where there is none."""
    steps = steps_present(root)
    if not steps:
        raise CheckpointError(f"{root} {'holds no step_* directory' if root.is_dir() else 'does not exist'}")
    return [_status(root, step) for step in steps]


def split_step_path(path: Path) -> tuple[Path, int | None]:
    """<root>/step_00001000 as (<root>, 1000); any other path is a root, without a step."""
    absolute = Path(os.path.abspath(path))  # not resolved: a link stays one, to be refused
    number = absolute.name.removeprefix("step_")
    if number.isascii() and number.isdigit() and step_directory(absolute.parent, int(number)) == absolute:
        return absolute.parent, int(number)
    return absolute, None


def _status(root: Path, step: int) -> StepStatus:
    sections: list[str] = []
    problem = ""
    try:
        manifest = read_manifest(root, step)
        sections = sorted({entry.name.partition("/")[0] for entry in manifest.tensors})
    except CheckpointError as error:
        problem = str(error)
    finished = has_manifest(root, step)
    directory = step_directory(root, step)
    with naming("list", directory):
        # Links are measured as such: what they lead to is no part of the checkpoint.
        files = [os.lstat(entry) for entry in directory.iterdir()] if directory.is_dir() else []
        saved_at = os.lstat(directory / FILE_NAME).st_mtime if finished else None
    return StepStatus(
        step=step,
        status="usable" if not problem else "damaged" if finished else "unfinished",
        nbytes=sum(file.st_size for file in files),
        saved_at=saved_at,
        sections=tuple(sections),
        problem=problem,
    )
