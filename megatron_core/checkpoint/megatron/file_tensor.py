# SPDX-License-Identifier: Apache-2.0
"""A tensor that lies in a file and is read when, and as far as, it is wanted.

What part of its storage it is, torch says itself: views are taken of a tensor on the meta device, which has no bytes,
and what is read in the end are the bytes that the last view spans.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from megatron_core.checkpoint.files import opened, read_exactly

_SCRATCH_BYTES = 2**22


@dataclass(frozen=True, kw_only=True)
class FileTensor:
    """A tensor of a plain dtype, little-endian, in a file."""

    path: Path
    start: int
    """Byte of the file at which its storage begins."""
    layout: torch.Tensor
    """Shape, strides and place in the storage, on the meta device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent along each dim."""
        return tuple(self.layout.shape)

    @property
    def dtype(self) -> torch.dtype:
        """As it is stored."""
        return self.layout.dtype

    def view(self, take: Callable[[torch.Tensor], torch.Tensor]) -> "FileTensor":
        """The same file through `take`, any chain of indexing, reshaping and transposing that copies nothing."""
        return replace(self, layout=take(self.layout))

    def read(self) -> torch.Tensor:
        """All of it, contiguous. Raises CheckpointError where the file ends too early."""
        values = torch.empty(self.shape, dtype=self.dtype)
        self.fill(values)
        return values

    def fill(self, target: torch.Tensor) -> None:
        """Copy into `target`, of the same shape, on the CPU, with little memory beside. Raises as `read`."""
        assert target.shape == self.layout.shape, f"{tuple(target.shape)} for {self.shape} of {self.path}"
        with opened(Path(os.path.realpath(self.path))) as descriptor:
            self._fill(descriptor, target, self.layout)

    def _fill(self, descriptor: int, target: torch.Tensor, layout: torch.Tensor) -> None:
        if not layout.numel():
            return
        itemsize = layout.element_size()
        span = 1 + sum((extent - 1) * stride for extent, stride in zip(layout.shape, layout.stride()))
        straight = layout.is_contiguous() and target.is_contiguous() and target.dtype == layout.dtype
        if straight or span * itemsize <= _SCRATCH_BYTES:
            values = target.view(-1) if straight else torch.empty(span, dtype=layout.dtype)
            offset = self.start + int(layout.storage_offset()) * itemsize
            read_exactly(descriptor, self.path, offset, values.view(torch.uint8).numpy().data)
            if not straight:
                target.copy_(values.as_strided(layout.shape, layout.stride()))
            return
        if layout.shape[0] == 1:
            self._fill(descriptor, target[0], layout[0])
            return
        rows = min(max(_SCRATCH_BYTES // max(layout.stride(0) * itemsize, 1), 1), (layout.shape[0] + 1) // 2)
        for first in range(0, layout.shape[0], rows):
            self._fill(descriptor, target[first : first + rows], layout[first : first + rows])
