# SPDX-License-Identifier: Apache-2.0
"""Part of a file that nobody vouches for, read as if it were a file of its own: no read leaves it or is absurdly large.

For what is small in a file, such as its pickle and its list of contents; tensors are read by `file_tensor`.
"""

import mmap
import os
from pathlib import Path

from megatron_core.checkpoint.files import opened
from megatron_core.errors import CheckpointError

_MOST = 2**28


class FileSlice:
    """Bytes [start, start + length) of a file, with the methods that zipfile and pickletools call."""

    def __init__(self, path: Path, start: int = 0, length: int | None = None) -> None:
        """Without `length` up to the end. Links are followed. Raises CheckpointError where there are no such bytes."""
        self.path = Path(os.path.realpath(path))
        self.start = start
        with opened(self.path) as descriptor:
            size = os.fstat(descriptor).st_size
            self.length = size - start if length is None else length
            if not (start >= 0 and 0 < self.length <= size - start):
                raise CheckpointError(f"{path} has {size} bytes: none, or not the {self.length} from byte {start} on")
            self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        self._at = 0

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Bytes from the start of the slice."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, at most to the ends of the slice."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        self._at = min(max(base + offset, 0), self.length)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes. Raises CheckpointError where that is more at once than any part but a tensor has."""
        count = self.length - self._at if size < 0 else min(size, self.length - self._at)
        if count > _MOST:
            raise CheckpointError(f"{self.path} has {count} bytes in one piece where no tensor is")
        return self._taken(count)

    def readline(self) -> bytes:
        """Up to and with the next line's end, as `read`."""
        first = self.start + self._at
        end = self._map.find(b"\n", first, min(first + 2**16, self.start + self.length))
        return self.read(end + 1 - first) if end >= 0 else self.read(2**16)

    def _taken(self, count: int) -> bytes:
        first = self.start + self._at
        self._at += count
        return self._map[first : first + count]
