# SPDX-License-Identifier: Apache-2.0
"""The numbers of one stored tensor at a glance, in one pass and bounded memory.

Mean and variance of the parts are joined by the pairwise rule of Chan, Golub and LeVeque (1979), in float64.
"""

import math
from dataclasses import dataclass

import torch

from megatron_core.checkpoint.manifest import TensorEntry
from megatron_core.checkpoint.reader import CheckpointReader
from megatron_core.checkpoint.rectangle import Rectangle
from megatron_core.checkpoint.stream import stream

_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """Of the finite elements, if not said otherwise; NaN where there is none."""

    elements: int
    """All of them."""
    zeros: int
    nans: int
    infinities: int
    least: float
    largest: float
    mean: float
    std: float
    """Of the population: divided by the count."""
    norm: float
    """Root of the sum of squares."""
    first_values: tuple[float, ...]
    """The first few along the last dim, whatever they are."""


def tensor_statistics(reader: CheckpointReader, entry: TensorEntry) -> TensorStatistics:
    """Statistics of a tensor of any dtype. Raises CheckpointError where a block is damaged."""
    count = zeros = nans = infinities = 0
    mean = squares = 0.0  # sum of squared distances from the mean
    least, largest = math.inf, -math.inf
    for _, values in stream(reader, entry):
        part = values.double().reshape(-1)
        nans += int(part.isnan().sum())
        infinities += int(part.isinf().sum())
        zeros += int((part == 0).sum())
        part = part[part.isfinite()]
        if not len(part):
            continue
        least, largest = min(least, float(part.min())), max(largest, float(part.max()))
        shift, total = float(part.mean()) - mean, count + len(part)
        squares += float(part.var(correction=0)) * len(part) + shift**2 * count * len(part) / total
        mean += shift * len(part) / total
        count = total
    return TensorStatistics(
        elements=count + nans + infinities,
        zeros=zeros,
        nans=nans,
        infinities=infinities,
        least=least if count else math.nan,
        largest=largest if count else math.nan,
        mean=mean if count else math.nan,
        std=math.sqrt(squares / count) if count else math.nan,
        norm=math.sqrt(squares + count * mean**2) if count else math.nan,
        first_values=_first_values(reader, entry),
    )


def _first_values(reader: CheckpointReader, entry: TensorEntry) -> tuple[float, ...]:
    stop = (*(1 for _ in entry.shape[:-1]), min(entry.shape[-1], _SHOWN)) if entry.shape else ()
    corner = Rectangle((0,) * len(entry.shape), stop)
    values = reader.load_rectangle(entry.name, corner, getattr(torch, entry.dtype))
    return tuple(values.double().reshape(-1).tolist())
