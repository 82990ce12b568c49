# SPDX-License-Identifier: Apache-2.0
"""A tensor whose parts lie in several files, read as one, and what else must hold the same numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from megatron_core.checkpoint.cover import find_overlap
from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.errors import CheckpointError

_COMPARED_BYTES = 2**22


@dataclass(frozen=True, kw_only=True)
class ShardedTensor:
    """One of Megatron's parameters, whole."""

    name: str
    shape: tuple[int, ...]
    pieces: Sequence[tuple[Rectangle, FileTensor]]
    origin: str
    """Where it lies, for messages."""
    copies: Sequence["ShardedTensor"] = field(default=())
    """What other ranks have under this name, which must be equal to the bit."""

    @property
    def dtype(self) -> torch.dtype:
        """That of all pieces."""
        return self.pieces[0][1].dtype

    def check(self) -> None:
        """Raise CheckpointError unless the pieces are the tensor, each element once, in one floating dtype."""
        for rectangle, tensor in self.pieces:
            if tensor.shape != rectangle.shape:
                raise CheckpointError(f"{self.origin}: {self.name} has shape {tensor.shape}, not {rectangle.shape}")
            if tensor.dtype != self.dtype or not tensor.dtype.is_floating_point:
                raise CheckpointError(f"{self.origin}: {self.name} is {tensor.dtype} beside {self.dtype}")
        rectangles = [rectangle for rectangle, _ in self.pieces]
        inside = all(rectangle.intersection(whole(self.shape)) == rectangle for rectangle in rectangles)
        volume = sum(rectangle.volume for rectangle in rectangles)
        if not inside or volume != whole(self.shape).volume or (self.shape and find_overlap(rectangles)):
            raise CheckpointError(
                f"{self.origin}: {self.name} of shape {self.shape} has {volume} elements in {len(rectangles)} pieces, "
                "which do not make it up: a shard is missing or of another model"
            )
        for copy in self.copies:
            copy.check()

    def fill(self, target: torch.Tensor, rectangle: Rectangle) -> None:
        """Copy a rectangle of it into `target`, of the rectangle's shape. Raises CheckpointError."""
        for held, tensor in self.pieces:
            wanted = held.intersection(rectangle)
            if wanted is not None:
                inside = wanted.slices(held.start)
                tensor.view(lambda t, inside=inside: t[inside]).fill(  # type: ignore[misc]
                    target[wanted.slices(rectangle.start)]
                )

    def require_equal_copies(self) -> None:
        """Raise CheckpointError where a copy differs. Reads a few rows at a time."""
        rows = max(_COMPARED_BYTES * self.shape[0] // (whole(self.shape).volume * self.dtype.itemsize), 1)
        for copy in self.copies:
            for start in range(0, self.shape[0], rows):
                part = whole(self.shape).rows(0, start, min(start + rows, self.shape[0]))
                values = [torch.empty(part.shape, dtype=tensor.dtype) for tensor in (self, copy)]
                for tensor, target in zip((self, copy), values):
                    tensor.fill(target, part)
                if not torch.equal(*(value.view(torch.uint8) for value in values)):
                    gap = (values[0].double() - values[1].double()).abs().max().item()
                    raise CheckpointError(
                        f"{self.name} is not the same in {self.origin} and {copy.name} in {copy.origin}: up to "
                        f"{gap:.3g} apart near row {start}, so that it is not known which was trained"
                    )
