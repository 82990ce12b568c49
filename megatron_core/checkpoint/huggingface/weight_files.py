# SPDX-License-Identifier: Apache-2.0
"""The safetensors files of a model directory, of which any rectangle of any tensor can be read; nothing else is opened.

Headers come from anybody: every tensor's bytes are checked to lie in its file before something of its size is made.
Links are followed, since a hub's cache consists of them.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from megatron_core.checkpoint.files import open_regular, read_exactly
from megatron_core.checkpoint.huggingface.settings import read_json
from megatron_core.checkpoint.manifest import DTYPES
from megatron_core.checkpoint.plain import quote
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.shard_map import plan_reads, row_major_strides
from megatron_core.errors import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TORCH = {stored.code: name for name, stored in DTYPES.items()}
_MAX_HEADER_BYTES = 10**8  # safetensors' own limit
_READ_BYTES = 2**24
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True, kw_only=True)
class FileTensor:
    """Where one tensor lies."""

    path: Path
    offset: int
    """First byte in the file."""
    shape: tuple[int, ...]
    code: str
    """Its dtype's name in safetensors."""

    @property
    def dtype(self) -> torch.dtype:
        """Raises CheckpointError for one that weights here do not have."""
        if self.code not in _TORCH:
            raise CheckpointError(f"{self.path}: dtype {quote(self.code)}: weights are {', '.join(_TORCH)} here")
        found: torch.dtype = getattr(torch, _TORCH[self.code])
        return found


class WeightFiles:
    """All tensors of one directory by name. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        """Raises CheckpointError where there are no safetensors or a header is not right."""
        self._descriptors: dict[Path, int] = {}
        self._scratch = torch.empty(_READ_BYTES, dtype=torch.uint8)
        self.tensors: Mapping[str, FileTensor] = {}
        wanted = _names_by_file(directory)
        found: dict[str, FileTensor] = {}
        try:
            for path, names in wanted.items():
                self._descriptors[path] = open_regular(path)
                here = _read_header(self._descriptors[path], path)
                if missing := sorted(set(names) - here.keys()):
                    raise CheckpointError(f"{path} has no {missing[0]}, which {INDEX} says is there")
                found |= {name: here[name] for name in (names or here)}
        except CheckpointError:
            self._close()
            raise
        self.tensors = found

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def fill(self, target: torch.Tensor, name: str, seen: Sequence[int], rectangle: Rectangle) -> None:
        """Copy a rectangle of a tensor, seen in another shape of as many elements, into a view of that shape.

        Casts. Raises CheckpointError where the file ends too early.
        """
        tensor = self.tensors[name]
        dtype, everything = tensor.dtype, whole(seen)
        strides = row_major_strides(seen, 1)
        for read in plan_reads(everything, rectangle, dtype.itemsize, _READ_BYTES):
            into = target[read.rectangle.slices(rectangle.start)]
            straight = into.dtype == dtype and into.is_contiguous() and into.nbytes == read.stop - read.start
            buffer = into.reshape(-1).view(torch.uint8) if straight else self._scratch[: read.stop - read.start]
            memory = buffer.numpy().data
            read_exactly(self._descriptors[tensor.path], tensor.path, tensor.offset + read.start, memory)
            if not straight:
                into.copy_(torch.as_strided(buffer.view(dtype), read.rectangle.shape, strides))


def _names_by_file(directory: Path) -> Mapping[Path, Iterable[str]]:
    """Files to be opened with the tensors that the index says are in each; all of a file that has no index."""
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is no directory")
    if (directory / INDEX).exists():
        index = read_json(directory / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index:
            raise CheckpointError(f"{directory / INDEX}: weight_map is {quote(index)}, not an object of names")
        found: dict[Path, list[str]] = {}
        for name, file in index.items():
            if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                raise CheckpointError(f"{directory / INDEX}: {quote(file)} is no name of a .safetensors file beside it")
            found.setdefault(_followed(directory / file), []).append(name)
        return found
    if (directory / SINGLE).exists():
        return {_followed(directory / SINGLE): ()}
    pickled = sorted(path.name for pattern in _PICKLED for path in directory.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{directory} holds {pickled[0]}, but no safetensors: a pickle can run any program when it is loaded, so "
            "none is read here; save the model with save_pretrained(..., safe_serialization=True) where you trust it"
        )
    raise CheckpointError(f"{directory} holds neither {SINGLE} nor {INDEX}")


def _followed(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # a loop of links
        raise CheckpointError(f"cannot read {path}: {error}") from None


def _read_header(descriptor: int, path: Path) -> dict[str, FileTensor]:
    size = os.fstat(descriptor).st_size
    start = bytearray(8)
    read_exactly(descriptor, path, 0, memoryview(start))
    length = int.from_bytes(start, "little")
    if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        raise CheckpointError(f"{path} is not a safetensors file: a header of {length} bytes in a file of {size}")
    text = bytearray(length)
    read_exactly(descriptor, path, 8, memoryview(text))
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        entries = None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path} is not a safetensors file: its header is no JSON object")
    return {
        name: _entry(path, name, entry, 8 + length, size) for name, entry in entries.items() if name != "__metadata__"
    }


def _entry(path: Path, name: str, entry: Any, data: int, size: int) -> FileTensor:
    """One tensor of a header whose values begin at byte `data`. Raises CheckpointError unless its bytes are there."""
    try:
        shape, (start, stop), code = [*entry["shape"]], entry["data_offsets"], str(entry["dtype"])
        right = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
    except (TypeError, KeyError, ValueError):
        right = False
    if not right or not start <= stop <= size - data:
        raise CheckpointError(f"{path}: the header's entry for {quote(name)} is not right")
    known = DTYPES.get(_TORCH.get(code, ""))
    if known is not None and math.prod(shape) * known.itemsize != stop - start:
        raise CheckpointError(f"{path}: {quote(name)}: {code} {shape} in {stop - start} bytes")
    return FileTensor(path=path, offset=data + start, shape=tuple(shape), code=code)
