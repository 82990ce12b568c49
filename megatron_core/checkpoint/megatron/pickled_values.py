# SPDX-License-Identifier: Apache-2.0
"""The few things that a pickle may have made: containers, numpy's scalars and arrays, torch's dtypes and tensors.

Each is made by a function here from arguments that nobody vouches for, and raises ValueError or TypeError where they
are not what torch and numpy write. What is not in the tables stays inert.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megatron_core.checkpoint.megatron.file_tensor import FileTensor
from megatron_core.checkpoint.megatron.inert import Inert
from megatron_core.checkpoint.plain import quote

_STORAGES: Mapping[str, torch.dtype] = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.storage.UntypedStorage": torch.uint8,
}
_DTYPES: Mapping[str, torch.dtype] = {str(dtype): dtype for dtype in _STORAGES.values()}
_RECORDS = frozenset({"argparse.Namespace", "torch.device", "torch.serialization._get_layout", "numpy.ndarray"})
_RECORD_MODULES = ("torch.distributed.checkpoint.metadata.", "torch.distributed.checkpoint.filesystem.", "pathlib.")
"""Inert, and read by name: nothing of them is needed but what they hold."""
_NUMPY_DTYPE = re.compile(r"[<|=]?[biufcSU][0-9]{1,4}", re.ASCII)
_MAX_DIMS = 16
_MAX_EXTENT = 2**48


@dataclass(frozen=True, kw_only=True)
class Storage:
    """The bytes that tensors are views of."""

    path: Path
    start: int
    dtype: torch.dtype
    numel: int


def is_expected(name: str) -> bool:
    """Whether a name belongs into a checkpoint: what is made here, and the records that are read as they are."""
    return name in _BUILDERS or name in _RECORDS or name.startswith(_RECORD_MODULES) or name in _STORAGES


def storage_dtype(kind: object) -> torch.dtype:
    """The dtype of the storage class that a persistent id names."""
    name = kind.name if isinstance(kind, Inert) else ""
    dtype = _STORAGES.get(name)
    if dtype is None:
        raise ValueError(f"a storage of type {quote(name)}")
    return dtype


def build(callee: Inert, arguments: tuple[Any, ...] | None) -> object:
    """What a name stands for (`arguments` None) or a call of it gives, if it is known here; else an Inert."""
    if arguments is None:
        return _DTYPES.get(callee.name, callee)
    builder = _BUILDERS.get(callee.name)
    return Inert(callee.name, arguments) if builder is None else builder(*arguments)


def give_state(target: object, state: Any) -> None:
    """What BUILD does: the state is kept by what is inert, and fills a numpy array; elsewhere there is nothing to do.

    Attributes that a module puts on its dictionary of weights (_metadata) are left out.
    """
    if isinstance(target, Inert):
        target.state = state
    elif isinstance(target, np.ndarray):
        _fill_array(target, *state)
    elif isinstance(target, np.dtype):
        if state[1] not in ("<", "|", "="):
            raise ValueError("numbers of another byte order")
    elif not isinstance(target, dict):
        raise ValueError(f"a state for a {type(target).__name__}")


def _dictionary(items: Any = ()) -> dict[Any, Any]:
    pairs = [(key, value) for key, value in items]
    if not all(isinstance(key, (str, int)) for key, _ in pairs):
        raise ValueError("keys that are neither text nor numbers")
    return dict(pairs)


def _default_dictionary(factory: object = None, items: Any = ()) -> dict[Any, Any]:
    return _dictionary(items)


def _list(items: Any) -> list[Any]:
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"elements from a {type(items).__name__}")
    return list(items)


def _set(items: Any) -> set[Any]:
    if not all(item is None or isinstance(item, (str, int, float, Inert)) for item in _list(items)):
        raise ValueError("a set of what are neither texts nor numbers")
    return set(items)


def _bytes(text: str, encoding: str) -> bytes:
    """How protocol 2 writes bytes."""
    if encoding != "latin1":
        raise ValueError("bytes in another encoding than latin1")
    return text.encode("latin1")


def _instance(kind: Inert, base: object, state: object) -> Inert:
    """How protocols 0 and 1 make an object of a class: copyreg._reconstructor."""
    return Inert(kind.name, ())


def _numpy_dtype(code: object, align: object = False, copy: object = True) -> np.dtype[Any]:
    if not isinstance(code, str) or not _NUMPY_DTYPE.fullmatch(code):
        raise ValueError("a numpy dtype that is no plain one")
    return np.dtype(code)


def _numpy_scalar(dtype: np.dtype[Any], data: bytes) -> object:
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes) or len(data) != dtype.itemsize:
        raise ValueError("a numpy scalar without its bytes")
    return np.frombuffer(data, dtype)[0]


def _empty_array(kind: object, shape: object, code: object) -> np.ndarray:
    """An array before BUILD fills it."""
    return np.empty(0, np.int8)


def _fill_array(target: np.ndarray, version: int, shape: tuple[int, ...], dtype: Any, fortran: bool, data: Any) -> None:
    _check_array(shape, dtype, data)
    state: Any = (1, shape, dtype, bool(fortran), bytes(data))
    target.__setstate__(state)


def _array_from_buffer(data: Any, dtype: Any, shape: tuple[int, ...], order: str) -> np.ndarray:
    """How protocol 5 writes a contiguous array."""
    _check_array(shape, dtype, data)
    if order not in ("C", "F"):
        raise ValueError("an array in no order")
    return np.frombuffer(bytes(data), dtype).reshape(shape, order="C" if order == "C" else "F")


def _check_array(shape: Any, dtype: Any, data: Any) -> None:
    _require_extents(shape)
    if not isinstance(dtype, np.dtype) or not isinstance(data, (bytes, bytearray)):
        raise ValueError("an array without plain bytes")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes for an array of shape {shape}")


def _size(extents: Any) -> tuple[int, ...]:
    """torch.Size."""
    extents = tuple(_list(extents))
    _require_extents(extents)
    return extents


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: object) -> FileTensor:
    """torch._utils._rebuild_tensor_v2 and its predecessor: a view of a storage."""
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    _require_extents(size)
    _require_extents(stride)
    _require_extents((offset,))
    if len(size) != len(stride):
        raise ValueError(f"a tensor with {len(size)} dims and {len(stride)} strides")
    last = offset + sum((extent - 1) * step for extent, step in zip(size, stride))
    if 0 not in size and max(last, math.prod(size) - 1) >= storage.numel:
        raise ValueError(f"a tensor of shape {size} and strides {stride} in a storage of {storage.numel} elements")
    whole = torch.empty(storage.numel, dtype=storage.dtype, device="meta")
    if 0 in size:
        return FileTensor(path=storage.path, start=storage.start, layout=whole[:0].reshape(size))
    return FileTensor(path=storage.path, start=storage.start, layout=whole.as_strided(size, stride, offset))


def _parameter(data: Any, *_: object) -> object:
    """A torch.nn.Parameter is its tensor."""
    if not isinstance(data, FileTensor):
        raise ValueError("a parameter without a tensor")
    return data


def _of_type(function: Any, kind: object, arguments: Any, state: object) -> object:
    """A subclass of a tensor, or one with attributes, is its tensor."""
    if not isinstance(function, Inert) or not isinstance(arguments, tuple):
        raise ValueError("a tensor that is made of nothing")
    return build(function, arguments) if function.name.startswith("torch._utils.") else Inert(function.name, arguments)


def _require_extents(values: Any) -> None:
    if not isinstance(values, tuple) or len(values) > _MAX_DIMS:
        raise ValueError(f"a {type(values).__name__} as a shape")
    if not all(type(value) is int and 0 <= value <= _MAX_EXTENT for value in values):
        raise ValueError("an impossible shape, stride or offset")


_BUILDERS: Mapping[str, Callable[..., object]] = {
    "collections.OrderedDict": _dictionary,
    "collections.defaultdict": _default_dictionary,
    "builtins.dict": _dictionary,
    "builtins.list": _list,
    "builtins.set": _set,
    "builtins.frozenset": lambda items: frozenset(_set(items)),
    "builtins.bytes": lambda: b"",
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": _instance,
    "numpy.dtype": _numpy_dtype,
    **{
        f"numpy.{package}.multiarray.{name}": builder
        for package in ("core", "_core")
        for name, builder in (("scalar", _numpy_scalar), ("_reconstruct", _empty_array))
    },
    "numpy.core.numeric._frombuffer": _array_from_buffer,
    "numpy._core.numeric._frombuffer": _array_from_buffer,
    "torch.Size": _size,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._tensor._rebuild_from_type_v2": _of_type,
}
"""Name -> what makes it here."""
