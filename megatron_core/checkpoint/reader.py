# SPDX-License-Identifier: Apache-2.0
"""Reads any rectangle of any tensor of a checkpoint, only the bytes that it needs, each block checked as it is read.

Nothing is allocated beyond the rectangle asked for, one scratch buffer of at most a read and its blocks, and headers.
"""

import os
from collections import OrderedDict
from pathlib import Path
from types import TracebackType

import torch

from megatron_core.checkpoint.blocks import checksum, read_blocks, whole_blocks
from megatron_core.checkpoint.files import open_regular, read_exactly
from megatron_core.checkpoint.manifest import DataFile, Manifest, Piece, TensorEntry
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.checkpoint.shard_map import Read, plan_reads, row_major_strides
from megatron_core.errors import CheckpointError

_OPEN_FILES = 64


class CheckpointReader:
    """One checkpoint, open for reading. For one thread; use as a context manager."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        """`manifest`: the directory's, checked."""
        self._directory = directory
        self._tensors = {entry.name: entry for entry in manifest.tensors}
        self._files = {file.name: file for file in manifest.files}
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def __enter__(self) -> "CheckpointReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def load_rectangle(self, name: str, rectangle: Rectangle, dtype: torch.dtype) -> torch.Tensor:
        """A rectangle of a tensor on the CPU. Raises as `fill`."""
        self._entry(name, rectangle)
        values = torch.empty(rectangle.shape, dtype=dtype)
        self.fill(values, name, rectangle)
        return values

    def fill(self, target: torch.Tensor, name: str, rectangle: Rectangle) -> None:
        """Copy a rectangle of a tensor into `target`, of the rectangle's shape, on any device, casting between floats.

        Raises CheckpointError where the tensor is missing or smaller, a cast would not be between floats, a file is
        not what the manifest says, or a block is damaged; `target` may then hold anything.
        """
        assert target.shape == rectangle.shape, f"{name}: a target of shape {tuple(target.shape)} for {rectangle}"
        entry = self._entry(name, rectangle)
        stored: torch.dtype = getattr(torch, entry.dtype)
        if stored != target.dtype and not (stored.is_floating_point and target.dtype.is_floating_point):
            raise CheckpointError(f"{self._directory}: tensor {name} is {entry.dtype}, not {target.dtype}")
        for piece in entry.pieces:
            wanted = piece.rectangle.intersection(rectangle)
            if wanted is None:
                continue
            for read in plan_reads(piece.rectangle, wanted, entry.itemsize):
                into = target[read.rectangle.slices(rectangle.start)]
                if into.dtype == stored and _is_straight(piece, read, into):
                    self._read(piece, read.start, read.stop, into.reshape(-1).view(torch.uint8))
                else:
                    values = self._read(piece, read.start, read.stop, self._scratch_for(piece, read.start, read.stop))
                    into.copy_(_strided(values, stored, piece.rectangle, read))

    def verify(self, piece: Piece, most: int = 2**24) -> None:
        """Check all blocks of a piece, at most `most` bytes at a time. Raises CheckpointError."""
        for start in range(0, piece.nbytes, most):
            stop = min(start + most, piece.nbytes)
            self._read(piece, start, stop, self._scratch_for(piece, start, stop))

    def _entry(self, name: str, rectangle: Rectangle) -> TensorEntry:
        entry = self._tensors.get(name)
        if entry is None:
            raise CheckpointError(f"{self._directory} holds no tensor {name}")
        if len(rectangle.stop) != len(entry.shape) or any(a > b for a, b in zip(rectangle.stop, entry.shape)):
            raise CheckpointError(f"{self._directory}: tensor {name} has shape {entry.shape}, which has no {rectangle}")
        return entry

    def _scratch_for(self, piece: Piece, start: int, stop: int) -> torch.Tensor:
        """The scratch buffer, in which what is read stays until the next read."""
        first, end = whole_blocks(start, stop, piece.nbytes)
        if len(self._scratch) < end - first:
            self._scratch = torch.empty(end - first, dtype=torch.uint8)
        return self._scratch

    def _read(self, piece: Piece, start: int, stop: int, buffer: torch.Tensor) -> torch.Tensor:
        """Bytes [start, stop) of a piece, checked, as a view of `buffer`, which has room for whole blocks of them."""
        descriptor = self._open(piece.file)
        path = self._directory / piece.file
        memory = buffer.numpy().data
        read_blocks(lambda offset, blocks: read_exactly(descriptor, path, offset, blocks), piece, start, stop, memory)
        first, _ = whole_blocks(start, stop, piece.nbytes)
        return buffer[start - first : stop - first]

    def _open(self, name: str) -> int:
        """Descriptor of a data file whose size and header are as written; the most recently used ones stay open."""
        if name in self._descriptors:
            self._descriptors.move_to_end(name)
            return self._descriptors[name]
        if len(self._descriptors) == _OPEN_FILES:
            os.close(self._descriptors.popitem(last=False)[1])
        self._descriptors[name] = open_data_file(self._directory, self._files[name])
        return self._descriptors[name]


def open_data_file(directory: Path, file: DataFile) -> int:
    """Descriptor of a data file, its size and header checked. Raises CheckpointError."""
    path = directory / file.name
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size:
            raise CheckpointError(f"{path} has {size} bytes, but {file.size} were written")
        start = bytearray(9)
        read_exactly(descriptor, path, 0, memoryview(start))
        if start[8:] != b"{" or int.from_bytes(start[:8], "little") + 8 != file.header_bytes:
            raise CheckpointError(
                f"{path} is not the safetensors file that was written: its first bytes are {bytes(start)!r}"
            )
        header = bytearray(file.header_bytes)
        read_exactly(descriptor, path, 0, memoryview(header))
        if checksum(header) != file.header_checksum:
            raise CheckpointError(f"{path} is damaged: its header does not match its checksum")
    except CheckpointError:
        os.close(descriptor)
        raise
    return descriptor


def _strided(data: torch.Tensor, dtype: torch.dtype, piece: Rectangle, read: Read) -> torch.Tensor:
    """The rectangle that was read, as a view of the bytes from its first element to its last."""
    strides = row_major_strides(piece.shape, 1)
    elements = data.view(dtype)
    return torch.as_strided(elements, read.rectangle.shape, strides, elements.storage_offset())


def _is_straight(piece: Piece, read: Read, into: torch.Tensor) -> bool:
    """Whether a read of whole blocks is just what belongs into a stretch of host memory: no copy is needed then."""
    whole = whole_blocks(read.start, read.stop, piece.nbytes) == (read.start, read.stop)
    return whole and into.nbytes == read.stop - read.start and into.is_contiguous() and into.device.type == "cpu"
