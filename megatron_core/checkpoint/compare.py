# SPDX-License-Identifier: Apache-2.0
"""What differs between two checkpoints: tensors bit by bit, state and config field by field."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from megatron_core.checkpoint.manifest import Manifest, TensorEntry
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.stream import stream

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, kw_only=True)
class TensorDifference:
    """How far two tensors of one shape are apart."""

    name: str
    elements: int
    unequal: int
    """Elements whose bits differ; whose values differ, where the dtypes do."""
    max_abs: float
    """Largest |a - b|; infinite where just one is, or is NaN."""
    max_rel: float
    """Largest |a - b| / max(|a|, |b|) of an element."""


def structural_differences(a: Manifest, b: Manifest) -> list[str]:
    """A line for each tensor that only one holds, or that differs in shape or dtype, in order of name."""
    first, second = ({entry.name: entry for entry in manifest.tensors} for manifest in (a, b))
    lines = []
    for name in sorted(first.keys() | second.keys()):
        one, other = first.get(name), second.get(name)
        if one is None or other is None:
            lines.append(f"{name}: only in the {'second' if one is None else 'first'}")
        elif one.shape != other.shape:
            lines.append(f"{name}: shape {one.shape} in the first, {other.shape} in the second")
        elif one.dtype != other.dtype:
            lines.append(f"{name}: {one.dtype} in the first, {other.dtype} in the second")
    return lines


def compare_tensor(
    a: CheckpointReader, b: CheckpointReader, first: TensorEntry, second: TensorEntry
) -> TensorDifference:
    """Compare a tensor of `a` with that of the same shape in `b`, in bounded memory.

    Raises CheckpointError where a block of either is damaged.
    """
    assert first.shape == second.shape, f"{first.name}: shapes {first.shape} and {second.shape}"
    unequal, elements, max_abs, max_rel = 0, 0, 0.0, 0.0
    for rectangle, values in stream(a, first):
        others = b.load_rectangle(second.name, rectangle, getattr(torch, second.dtype))
        differs = _bits(values) != _bits(others) if first.dtype == second.dtype else values.double() != others.double()
        elements += values.numel()
        count = int(differs.sum())
        if count:
            unequal += count
            one, other = values[differs].double(), others[differs].double()
            distance = (one - other).abs()
            relative = distance / torch.maximum(one.abs(), other.abs())
            # -0.0 against 0.0 is a difference of bits and of nothing else.
            relative[distance == 0] = 0.0
            max_abs = max(max_abs, float(distance.nan_to_num(torch.inf, posinf=torch.inf).max()))
            max_rel = max(max_rel, float(relative.nan_to_num(torch.inf, posinf=torch.inf).max()))
    return TensorDifference(name=first.name, elements=elements, unequal=unequal, max_abs=max_abs, max_rel=max_rel)


def field_differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    """A line for each field of two JSON objects that differs or that only one has, in order of name."""
    lines = []
    for key in sorted(a.keys() | b.keys()):
        one, other = a.get(key), b.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            lines += field_differences(one, other, f"{prefix}{key}.")
        elif key not in a or key not in b or one != other:
            lines.append(f"{prefix}{key}: {_text(a, key)} in the first, {_text(b, key)} in the second")
    return lines


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(_BITS[values.element_size()])


def _text(fields: Mapping[str, Any], key: str) -> str:
    return json.dumps(fields[key]) if key in fields else "absent"
