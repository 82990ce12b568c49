# SPDX-License-Identifier: Apache-2.0
"""Reads every byte of a checkpoint against its checksums and says what is damaged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.errors import CheckpointError

ReportBytes = Callable[[int], None]
"""Called with the bytes done since the last call."""


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong, and the tensors that it hits, in order of name."""

    problem: str
    tensors: tuple[str, ...]


def verify(directory: Path, manifest: Manifest, report: ReportBytes) -> list[Damage]:
    """Check all blocks of all pieces, file by file from its start; a damaged piece is told by its first bad block."""
    pieces = sorted(
        ((piece, entry.name) for entry in manifest.tensors for piece in entry.pieces),
        key=lambda found: (found[0].file, found[0].offset),
    )
    damaged: dict[str, set[str]] = {}
    with CheckpointReader(directory, manifest) as reader:
        for piece, name in pieces:
            try:
                reader.verify(piece)
            except CheckpointError as error:
                damaged.setdefault(str(error), set()).add(name)
            report(piece.nbytes)
    return [Damage(problem, tuple(sorted(names))) for problem, names in damaged.items()]
