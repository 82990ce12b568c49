# SPDX-License-Identifier: Apache-2.0
"""Initial weights keyed by parameter name, so that every layout starts bit for bit the same.

A tensor is drawn in fixed blocks of rows, in fp32 on the CPU, each block from a generator keyed by (seed, name, block
number). A rank draws the blocks that its slice touches, then slices and casts. Standard deviations are Megatron-LM's:
`init_method_std`, and that over sqrt(2 L) for the projections which write to the residual stream.
"""

import math

import torch

from megatron_core.parallel.rng import keyed_generator
from megatron_core.tensor_parallel.shard_spec import ShardSpec

_BLOCK_ROWS = 256


def _draw_rows(seed: int, name: str, first: int, last: int, total: int, columns: int, std: float) -> torch.Tensor:
    """Rows [first, last) of the `total` x `columns` matrix that (seed, name) stands for."""
    blocks = []
    for block in range(first // _BLOCK_ROWS, -(-last // _BLOCK_ROWS)):
        start = block * _BLOCK_ROWS
        rows = min(_BLOCK_ROWS, total - start)
        drawn = torch.randn(rows, columns, generator=keyed_generator(seed, "init", name, block)).mul_(std)
        blocks.append(drawn[max(first - start, 0) : max(min(last - start, rows), 0)])
    return torch.cat(blocks) if blocks else torch.empty(0, columns)


def normal(spec: ShardSpec, std: float, seed: int, *, dtype: torch.dtype, rows: int | None = None) -> torch.Tensor:
    """This rank's slice of a N(0, std) tensor; `rows` > the slice's first dim appends zero (padding) rows."""
    columns = spec.shape[-1]
    total = math.prod(spec.shape[:-1])
    if spec.dim is None or spec.dim == len(spec.shape) - 1:
        whole = _draw_rows(seed, spec.name, 0, total, total, columns, std).view(spec.shape)
        local = spec.take(whole)
    else:
        inner = math.prod(spec.shape[spec.dim + 1 : -1])
        outer_rows = spec.shape[spec.dim] * inner
        pieces = [
            _draw_rows(seed, spec.name, base + spec.start * inner, base + spec.stop * inner, total, columns, std)
            for base in range(0, total, outer_rows)
        ]
        local = torch.cat(pieces).view(spec.local_shape)
    local = local.to(dtype)
    if rows is not None and rows > local.shape[0]:
        local = torch.cat([local, local.new_zeros(rows - local.shape[0], *local.shape[1:])])
    return local.contiguous()
