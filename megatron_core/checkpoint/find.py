# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint a run starts from. Nothing that was asked for or trained is passed over silently."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron_core.checkpoint.directory import has_manifest, read_manifest, step_directory, steps_present
from megatron_core.checkpoint.files import naming
from megatron_core.checkpoint.manifest import FILE_NAME, Manifest
from megatron_core.errors import CheckpointError

_OTHER_PROGRAMS: Mapping[str, str] = {
    "latest_checkpointed_iteration.txt": "a Megatron-LM checkpoint",
    "iter_*": "a Megatron-LM checkpoint",
    "latest": "a DeepSpeed checkpoint",
    "global_step*": "a DeepSpeed checkpoint",
    "*.distcp": "a checkpoint of torch.distributed.checkpoint",
    "*.pt": "a file of torch.save",
    "*.pth": "a file of torch.save",
}
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found, and what was passed over for it."""

    manifest: Manifest | None
    """None: there is nothing to start from, and nothing to lose."""
    passed_over: tuple[str, ...] = ()
    """A line for each newer directory that is not usable, to be said aloud."""


def find_newest(root: Path, below: int | None = None, *, own: bool = False) -> Found:
    """The newest usable checkpoint, of a step before `below` if given (a newer one turned out to be damaged).

    own: the run writes its own files here, so that those of a run that was killed before its first checkpoint was
    finished are no reason to refuse a new start; elsewhere whatever is there was meant to be loaded. Raises
    CheckpointError where there is something, but no usable checkpoint.
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
    if damaged or (passed_over and not own):
        raise CheckpointError(f"{root} holds no usable checkpoint: " + "; ".join(passed_over or ["no older one"]))
    _refuse_others(root, own)
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


def _refuse_others(root: Path, own: bool) -> None:
    """Raise CheckpointError where something else than a checkpoint is there: starting new would ignore it."""
    with naming("list", root):
        names = sorted(os.listdir(root)) if root.exists() else []
    for pattern, what in _OTHER_PROGRAMS.items():
        if other := next((name for name in names if Path(name).match(pattern)), None):
            raise CheckpointError(
                f"{root} holds {other}, which looks like {what}, and no step_* directory of this program; name a "
                "directory that has one, or an empty one to start new"
            )
    if own or not names:
        return
    if FILE_NAME in names:
        raise CheckpointError(f"{root} is one checkpoint: --load the directory that holds it, --ckpt-step its step")
    more = ", …" if len(names) > _NAMED else ""
    raise CheckpointError(
        f"{root} holds no step_* directory, but {', '.join(names[:_NAMED])}{more}; name a directory that has one, or "
        "an empty one to start new"
    )
