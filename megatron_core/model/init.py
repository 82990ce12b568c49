# SPDX-License-Identifier: Apache-2.0
"""Initial weights keyed by parameter name, so that every layout starts bit for bit the same.

A tensor is drawn in fixed blocks of rows, in fp32 on the CPU, each block from a generator keyed by (seed, name, block
number). A rank draws the blocks that its slice touches, then slices and casts. Standard deviations are Megatron-LM's:
`init_method_std`, and that over sqrt(2 L) for the projections which write to the residual stream.
"""

import math
from collections.abc import Iterator

import torch

from megatron_core.parallel.rng import keyed_generator
from megatron_core.tensor_parallel.shard_spec import ShardSpec

_BLOCK_ROWS = 256


def _draw_slice(spec: ShardSpec, std: float, seed: int) -> Iterator[torch.Tensor]:
    """The slice as a matrix [rows, last dim], block by block: each is drawn once, and cut before the next one is."""
    total = math.prod(spec.shape[:-1])
    for block, first in enumerate(range(0, total, _BLOCK_ROWS)):
        length = min(_BLOCK_ROWS, total - first)
        held = _held_rows(spec, first, length)
        if not held.any():
            continue
        drawn = torch.randn(length, spec.shape[-1], generator=keyed_generator(seed, "init", spec.name, block))
        if spec.dim == len(spec.shape) - 1:
            drawn = drawn[:, spec.start : spec.stop].clone()  # a view would keep the whole block
        yield (drawn if held.all() else drawn[held]).mul_(std)


def _held_rows(spec: ShardSpec, first: int, length: int) -> torch.Tensor:
    """Which of `length` rows of the tensor as a matrix, from row `first` on, belong to the slice: [length] bool."""
    if spec.dim is None or spec.dim == len(spec.shape) - 1:
        return torch.ones(length, dtype=torch.bool)
    rows_an_index = math.prod(spec.shape[spec.dim + 1 : -1])
    index = torch.arange(first, first + length) // rows_an_index % spec.shape[spec.dim]
    return (index >= spec.start) & (index < spec.stop)


def normal(spec: ShardSpec, std: float, seed: int, *, dtype: torch.dtype, rows: int | None = None) -> torch.Tensor:
    """This rank's slice of a N(0, std) tensor; `rows` > the slice's first dim appends zero (padding) rows."""
    pieces = [piece.to(dtype) for piece in _draw_slice(spec, std, seed)]
    local = torch.cat(pieces).view(spec.local_shape) if pieces else torch.empty(spec.local_shape, dtype=dtype)
    if rows is not None and rows > local.shape[0]:
        local = torch.cat([local, local.new_zeros(rows - local.shape[0], *local.shape[1:])])
    return local.contiguous()
