# SPDX-License-Identifier: Apache-2.0
"""A stored tensor part by part, so that looking at one of any size takes the memory of a few blocks."""

from collections.abc import Iterator

import torch

from megatron_core.checkpoint.manifest import TensorEntry
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import Rectangle, cut

PART_BYTES = 2**24


def stream(reader: CheckpointReader, entry: TensorEntry) -> Iterator[tuple[Rectangle, torch.Tensor]]:
    """Each element once: rectangles of at most PART_BYTES with their values, in the order in which the pieces lie.

    Raises CheckpointError as `CheckpointReader.fill`.
    """
    for piece in entry.pieces:
        for rectangle in cut(piece.rectangle, max(PART_BYTES // entry.itemsize, 1)):
            yield rectangle, reader.load_rectangle(entry.name, rectangle, getattr(torch, entry.dtype))
