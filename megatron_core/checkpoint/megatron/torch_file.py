# SPDX-License-Identifier: Apache-2.0
"""What torch.save wrote, opened without running anything and without reading a tensor.

Since torch 1.6 that is a zip archive with a pickle and each storage as an uncompressed member; before, pickles one
after the other and then the storages.
"""

import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from megatron_core.checkpoint.megatron.file_slice import FileSlice
from megatron_core.checkpoint.megatron.pickled_values import Storage, storage_dtype
from megatron_core.checkpoint.megatron.unpickle import unpickle
from megatron_core.errors import CheckpointError

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True, kw_only=True)
class TorchFile:
    """A file of torch.save."""

    value: Any
    """What was saved; tensors are FileTensors, objects of unknown classes Inert."""
    inert: frozenset[str]
    """Names in it that no checkpoint needs; none was called."""


@dataclass(frozen=True)
class _Member:
    """Bytes of one storage."""

    start: int
    """Byte of the file."""
    nbytes: int


def open_torch_file(path: Path, start: int = 0, length: int | None = None) -> TorchFile:
    """The file, or what lies at bytes [start, start + length) of it. Raises CheckpointError."""
    file = FileSlice(path, start, length)
    signature = file.read(4)
    file.seek(0)
    return _open_zip(file) if signature == b"PK\x03\x04" else _open_legacy(file)


def _open_zip(file: FileSlice) -> TorchFile:
    try:
        with zipfile.ZipFile(cast(IO[bytes], file)) as archive:
            infos = {info.filename.partition("/")[2]: info for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise CheckpointError(f"{file.path} is a damaged zip archive: {error}") from None
    order = infos.get("byteorder")
    if order is not None and _small(file, _member(file, order)) != b"little":
        raise CheckpointError(f"{file.path} was written on a machine of another byte order")
    if "data.pkl" not in infos:
        raise CheckpointError(f"{file.path} is a zip archive, but none of torch.save: it has no data.pkl")

    def storage(identifier: object) -> Storage:
        kind, key, numel = _storage_fields(identifier)
        info = infos.get(f"data/{key}")
        if info is None:
            raise ValueError("a storage that the archive lacks")
        return _storage(file, kind, numel, _member(file, info))

    pickle = _member(file, infos["data.pkl"])
    value, inert = unpickle(FileSlice(file.path, pickle.start, pickle.nbytes), storage)
    return TorchFile(value=value, inert=inert)


def _small(file: FileSlice, member: _Member) -> bytes:
    """A small member of an archive."""
    file.seek(member.start - file.start)
    return file.read(member.nbytes)


def _member(file: FileSlice, info: zipfile.ZipInfo) -> _Member:
    """Where a member's bytes lie: behind its own header, which repeats what the list of contents says of it."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise CheckpointError(f"{file.path}: a member is compressed or encrypted, which torch never writes")
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
        raise CheckpointError(f"{file.path} is a damaged zip archive: no member at byte {info.header_offset}")
    _, name, extra = _LOCAL_HEADER.unpack(header)
    start = info.header_offset + _LOCAL_HEADER.size + name + extra
    if start + info.file_size > file.length:
        raise CheckpointError(f"{file.path}: a member of {info.file_size} bytes does not lie in it")
    return _Member(file.start + start, info.file_size)


def _open_legacy(file: FileSlice) -> TorchFile:
    """The form of torch < 1.6: magic number, protocol, system, object, keys; then each storage with its length."""
    magic, _ = unpickle(file)
    protocol, _ = unpickle(file)
    system, _ = unpickle(file)
    if magic != _LEGACY_MAGIC or protocol != 1001:
        raise CheckpointError(f"{file.path} is no file of torch.save")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise CheckpointError(f"{file.path} was written on a machine of another byte order")
    body = file.tell()
    wanted: dict[str, tuple[object, int]] = {}

    def learn(identifier: object) -> Storage:
        kind, key, numel = _storage_fields(identifier)
        wanted[key] = kind, numel
        return Storage(path=file.path, start=0, dtype=storage_dtype(kind), numel=numel)

    unpickle(file, learn)  # where storages lie is known only behind it: once for their sizes, once for the object
    keys, _ = unpickle(file)
    members = _legacy_members(file, keys, wanted)

    def storage(identifier: object) -> Storage:
        kind, key, numel = _storage_fields(identifier)
        return _storage(file, kind, numel, members[key])

    file.seek(body)
    value, inert = unpickle(file, storage)
    return TorchFile(value=value, inert=inert)


def _legacy_members(file: FileSlice, keys: object, wanted: Mapping[str, tuple[object, int]]) -> dict[str, _Member]:
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in wanted for key in keys):
        raise CheckpointError(f"{file.path}: its storages are not those of its tensors")
    members = {}
    for key in keys:
        kind, numel = wanted[key]
        count = int.from_bytes(file.read(8), "little")
        nbytes = numel * storage_dtype(kind).itemsize
        if count != numel or file.tell() + nbytes > file.length:
            raise CheckpointError(f"{file.path}: a storage of {count} elements where {numel} are expected")
        members[key] = _Member(file.start + file.tell(), nbytes)
        file.seek(file.tell() + nbytes)
    return members


def _storage_fields(identifier: object) -> tuple[object, str, int]:
    """Type, key and number of elements of a persistent id."""
    if not isinstance(identifier, tuple) or len(identifier) not in (5, 6) or identifier[0] != "storage":
        raise ValueError("a persistent id that is no storage")
    _, kind, key, _, numel = identifier[:5]
    if len(identifier) == 6 and identifier[5] is not None:
        raise ValueError("a view of a storage, which only very old versions of torch wrote")
    if not isinstance(key, str) or type(numel) is not int or not 0 <= numel < 2**48:
        raise ValueError("a storage without key or size")
    return kind, key, numel


def _storage(file: FileSlice, kind: object, numel: int, member: _Member) -> Storage:
    dtype = storage_dtype(kind)
    if numel * dtype.itemsize > member.nbytes:
        raise ValueError(f"a storage of {numel} elements in {member.nbytes} bytes")
    return Storage(path=file.path, start=member.start, dtype=dtype, numel=numel)
