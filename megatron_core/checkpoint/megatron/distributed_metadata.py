# SPDX-License-Identifier: Apache-2.0
"""The `.metadata` of PyTorch's distributed checkpoint format, from a pickle that nobody vouches for.

It says of every tensor which chunks it has, and of every chunk in which file and at which bytes it lies.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_core.checkpoint.megatron.file_slice import FileSlice
from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.checkpoint.megatron.torch_file import TorchFile, open_torch_file
from megatron_core.checkpoint.megatron.unpickle import unpickle
from megatron_core.checkpoint.plain import quote
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.errors import CheckpointError

FILE_NAME = ".metadata"
_MODULE = "torch.distributed.checkpoint"
Extents = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor."""

    shape: Extents
    chunks: tuple[Rectangle, ...]


@dataclass(frozen=True, kw_only=True)
class DistributedMetadata:
    """What the directory of a checkpoint holds."""

    directory: Path
    tensors: Mapping[str, StoredTensor]
    places: Mapping[tuple[str, Extents | None], Inert]
    """Record of file, offset and length by name and the chunk's offset, which what is no tensor has not."""
    inert: frozenset[str]

    def open(self, name: str, offset: Extents | None) -> TorchFile:
        """What was saved there. Raises CheckpointError where there is nothing, or it is in another form."""
        record = self.places.get((name, offset))
        where = f"{self.directory}: {quote(name)[1:-1]} at {offset}"
        if record is None:
            raise CheckpointError(f"{where} is said to exist but lies in no file")
        fields = record.fields
        path, start, length = (fields.get(key) for key in ("relative_path", "offset", "length"))
        if not isinstance(path, str) or Path(path).name != path or type(start) is not int or type(length) is not int:
            shown = quote(path) if isinstance(path, str) else type(path).__name__
            raise CheckpointError(f"{where} lies at {shown}, which is no place in a file of the same directory")
        if fields.get("transform_descriptors"):
            raise CheckpointError(f"{where} is compressed: save it without extensions")
        return open_torch_file(self.directory / path, start, length)


def read_metadata(directory: Path) -> DistributedMetadata:
    """The metadata in a directory. Raises CheckpointError where there are none that make sense."""
    path = directory / FILE_NAME
    value, inert = unpickle(FileSlice(path))
    tensors: dict[str, StoredTensor] = {}
    places: dict[tuple[str, Extents | None], Inert] = {}
    try:
        fields = _fields(value, "metadata.Metadata")
        for name, entry in _items(fields["state_dict_metadata"]):
            if isinstance(entry, Inert) and entry.name == f"{_MODULE}.metadata.TensorStorageMetadata":
                tensors[_text(name)] = _tensor(entry)
        for index, record in _items(fields["storage_data"]):
            key = _fields(index, "metadata.MetadataIndex")
            offset = key.get("offset")
            place = (_text(key["fqn"]), None if offset is None else _extents(offset))
            _fields(record, "filesystem._StorageInfo")
            places[place] = record
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is no metadata of a distributed checkpoint: {error}") from None
    return DistributedMetadata(directory=directory, tensors=tensors, places=places, inert=inert)


def _tensor(entry: Inert) -> StoredTensor:
    shape = _extents(entry.fields["size"])
    chunks = []
    stored = entry.fields["chunks"]
    if not isinstance(stored, list):
        raise TypeError("chunks that are no list")
    for chunk in stored:
        fields = _fields(chunk, "metadata.ChunkStorageMetadata")
        start, sizes = _extents(fields["offsets"]), _extents(fields["sizes"])
        if not len(start) == len(sizes) == len(shape):
            raise ValueError("a chunk with other dims than its tensor")
        chunks.append(Rectangle(start, tuple(map(sum, zip(start, sizes)))))
    return StoredTensor(shape=shape, chunks=tuple(chunks))


def _fields(record: object, name: str) -> dict[str, Any]:
    if not isinstance(record, Inert) or record.name != f"{_MODULE}.{name}":
        raise TypeError(f"a {record.name if isinstance(record, Inert) else type(record).__name__} instead of {name}")
    return record.fields


def _items(mapping: object) -> Iterator[tuple[Any, Any]]:
    if not isinstance(mapping, dict):
        raise TypeError(f"a {type(mapping).__name__} instead of a dictionary")
    return iter(mapping.items())


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value


def _extents(value: object) -> Extents:
    if not isinstance(value, tuple) or not all(type(extent) is int and 0 <= extent < 2**48 for extent in value):
        raise ValueError("an impossible shape or offset")
    return value
