# SPDX-License-Identifier: Apache-2.0
"""g and its sequence-parallel twin: values, gradients, and that the input stays as it was."""

import pytest
import torch

from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.tensor_parallel.mappings import reduce_from_tensor_parallel
from tests.rank_pool import ranks
from tests.small_model import randn

LAYOUTS = ({"tp": 2}, {"tp": 4})


def _partials(tp: int) -> list[torch.Tensor]:
    """What each rank holds: [8, 3]."""
    return [randn(8, 3, seed=rank) for rank in range(tp)]


@ranks(*LAYOUTS)
def test_g_sums_and_hands_every_rank_the_whole_gradient(ctx: ParallelContext) -> None:
    partials = _partials(ctx.tp.size)
    x = partials[ctx.rank].clone().requires_grad_()
    y = reduce_from_tensor_parallel(x, ctx.tp, False)
    torch.testing.assert_close(y, sum(partials), rtol=1e-14, atol=1e-14)
    assert torch.equal(x, partials[ctx.rank]), "the input may be saved for its own backward"
    upstream = randn(8, 3, seed=9)
    y.backward(upstream)
    assert torch.equal(x.grad, upstream)


@ranks(*LAYOUTS)
def test_sequence_parallel_g_scatters_forward_and_gathers_backward(ctx: ParallelContext) -> None:
    partials, part = _partials(ctx.tp.size), 8 // ctx.tp.size
    mine = slice(ctx.rank * part, (ctx.rank + 1) * part)
    x = partials[ctx.rank].clone().requires_grad_()
    y = reduce_from_tensor_parallel(x, ctx.tp, True)
    torch.testing.assert_close(y, sum(partials)[mine], rtol=1e-14, atol=1e-14)
    upstream = randn(8, 3, seed=9)
    y.backward(upstream[mine])
    assert torch.equal(x.grad, upstream)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_alone_it_is_the_identity(sequence_parallel: bool) -> None:
    x = randn(4, 2)
    assert reduce_from_tensor_parallel(x, single_process_context().tp, sequence_parallel) is x
