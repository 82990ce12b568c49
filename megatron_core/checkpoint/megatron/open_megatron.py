# SPDX-License-Identifier: Apache-2.0
"""A directory of Megatron-LM's --save, or of one iteration in it -> the checkpoint, in whichever of its forms it is."""

from pathlib import Path

from megatron_core.checkpoint.files import naming
from megatron_core.checkpoint.megatron.distributed_metadata import FILE_NAME
from megatron_core.checkpoint.megatron.legacy_read import open_legacy
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.torch_dist import SIGN, open_torch_dist
from megatron_core.checkpoint.plain import quote
from megatron_core.errors import CheckpointError

TRACKER = "latest_checkpointed_iteration.txt"
"""Names the newest iteration, or "release"."""


def open_megatron(path: Path) -> OpenedMegatron:
    """The newest checkpoint of a --save directory, or that of an iteration. Raises CheckpointError."""
    directory = iteration_directory(path)
    with naming("list", directory):
        names = {entry.name for entry in directory.iterdir()}
    if names & {FILE_NAME, SIGN}:
        return open_torch_dist(directory)
    if any(name.startswith("mp_rank_") for name in names):
        return open_legacy(directory)
    raise CheckpointError(
        f"{path} holds no checkpoint of Megatron-LM: neither {TRACKER}, nor mp_rank_*, nor {FILE_NAME}"
    )


def iteration_directory(path: Path) -> Path:
    """The directory that the tracker names; without one `path` itself."""
    tracker = path / TRACKER
    if not tracker.exists():
        return path
    with naming("read", tracker), tracker.open("rb") as file:
        text = file.read(64).decode("utf-8", "replace").strip()
    if text == "release":
        return path / text
    if not text.isascii() or not text.isdigit():
        raise CheckpointError(f'{tracker} is {quote(text)}, neither the number of an iteration nor "release"')
    return path / f"iter_{int(text):07d}"
