# SPDX-License-Identifier: Apache-2.0
"""Megatron's conjugate pairs of communication as autograd functions (Shoeybi et al. 2019, section 3; Korthikanti et al.
2022, section 4.2.2).

    f      identity forward, all-reduce backward       enters a tensor-parallel region from a replicated tensor
    g      all-reduce forward, identity backward       leaves it
    f_bar, g_bar: the same with the replicated tensor cut along the sequence (dim 0), all-gather and reduce-scatter.

Linears carry f and f_bar inside, so that their communication overlaps their GEMMs; this file serves the rest.
"""

from typing import Any

import torch

from megatron_core.parallel.collectives import all_gather, all_reduce, reduce_scatter
from megatron_core.parallel.context import Group


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        # Out of place: the caller's tensor may be saved for its own backward.
        return all_reduce(x.clone(memory_format=torch.contiguous_format), group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return all_gather(grad, ctx.group), None


def reduce_from_tensor_parallel(x: torch.Tensor, group: Group, sequence_parallel: bool) -> torch.Tensor:
    """g, or g_bar under sequence parallelism: sum partial results x [s, ...] over tp to [s, ...] or [s/tp, ...]."""
    if group.size == 1:
        return x
    result: torch.Tensor = (_ReduceScatter if sequence_parallel else _Reduce).apply(x, group)
    return result
