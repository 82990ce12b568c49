# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a run starts from. Nothing that was asked for or trained is passed over silently."""

from dataclasses import dataclass
from pathlib import Path

from megatron_core.checkpoint.directory import has_manifest, read_manifest, step_directory, steps_present
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.errors import CheckpointError

_OTHER_PROGRAMS = ("latest_checkpointed_iteration.txt", "iter_*", "latest", "global_step*", "*.distcp", "*.pt", "*.pth")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found, and what was passed over for it."""

    manifest: Manifest | None
    """None: there is nothing to start from, and nothing to lose."""
    passed_over: tuple[str, ...] = ()
    """A line for each newer directory that is not usable, to be said aloud."""


def find_newest(root: Path, below: int | None = None) -> Found:
    """The newest usable checkpoint, of a step before `below` if given (a newer one turned out to be damaged).

    Directories without a manifest are rests of interrupted saves and count as nothing. Raises CheckpointError where
    there are checkpoints, ours or another program's, but none that is usable.
    """
    passed_over: list[str] = []
    damaged = below is not None
    for step in reversed(steps_present(root)):
        if below is not None and step >= below:
            continue
        try:
            return Found(manifest=read_manifest(root, step), passed_over=tuple(passed_over))
        except CheckpointError as error:
            passed_over.append(str(error))
            damaged = damaged or has_manifest(root, step)
    if damaged:
        raise CheckpointError(f"{root} holds no usable checkpoint: " + "; ".join(passed_over or ["no older one"]))
    if foreign := _other_programs_files(root):
        raise CheckpointError(
            f"{root} holds {foreign}, which looks like another program's checkpoint, and no step_* directory of this "
            "one; convert it, or name an empty directory to start new"
        )
    return Found(manifest=None, passed_over=tuple(passed_over))


def find_step(root: Path, step: int) -> Found:
    """The checkpoint of one step. Raises CheckpointError, with a list of the usable ones, where it is not usable."""
    try:
        if step not in steps_present(root):
            raise CheckpointError(f"{step_directory(root, step)} does not exist")
        return Found(manifest=read_manifest(root, step))
    except CheckpointError as error:
        usable = ", ".join(map(str, usable_steps(root))) or "none"
        raise CheckpointError(f"{error}; usable steps in {root}: {usable}") from None


def usable_steps(root: Path) -> list[int]:
    """Steps whose manifests parse and whose files have the right sizes, in order of number."""
    return [step for step in steps_present(root) if _is_usable(root, step)]


def _is_usable(root: Path, step: int) -> bool:
    try:
        read_manifest(root, step)
    except CheckpointError:
        return False
    return True


def _other_programs_files(root: Path) -> str | None:
    return next((path.name for pattern in _OTHER_PROGRAMS for path in sorted(root.glob(pattern))), None)
