# SPDX-License-Identifier: Apache-2.0
"""Reads a file just written from the disk, not from memory: before older checkpoints go for the new one."""

import os
from pathlib import Path

from megatron_core.checkpoint.files import opened
from megatron_core.checkpoint.manifest import RankFile, merge
from megatron_core.checkpoint.reader import CheckpointReader


def read_back(directory: Path, written: RankFile) -> None:
    """Check every block of a rank's file. Raises CheckpointError where what is there is not what was written."""
    with opened(directory / written.file.name) as descriptor:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    alone = merge(0, [written], state={}, config={})
    with CheckpointReader(directory, alone) as reader:
        for entry in alone.tensors:
            for piece in entry.pieces:
                reader.verify(piece)
