# SPDX-License-Identifier: Apache-2.0
"""The vocabulary-parallel table against an ordinary one, padding rows included."""

import pytest
import torch
import torch.nn.functional as F

from megatron_core.model.embedding import vocabulary_weight
from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.embedding import VocabParallelEmbedding
from megatron_core.tensor_parallel.vocab import vocab_slice
from tests.rank_pool import ranks
from tests.small_model import ALONE, gathered, make_factory, randn, small

IDS = torch.tensor([[0, 36, 5, 5], [9, 10, 19, 20], [36, 36, 1, 2], [30, 31, 32, 0]])  # [s, b]


def _table(ctx: ParallelContext, divisor: int, sequence_parallel: bool) -> VocabParallelEmbedding:
    config = small(make_vocab_size_divisible_by=divisor)
    factory = make_factory(config, ctx, sequence_parallel=sequence_parallel)
    weight = vocabulary_weight(factory, "w", tied=False, counted=True, gradients=1)
    return VocabParallelEmbedding(weight, vocab_slice(config, ctx.tp), ctx.tp, factory.sequence_parallel)


@pytest.mark.parametrize("accumulator", [False, True])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("divisor", [1, 128])
@ranks({"tp": 2}, {"tp": 4})
def test_equals_an_ordinary_table(
    ctx: ParallelContext, divisor: int, sequence_parallel: bool, accumulator: bool
) -> None:
    table, upstream = _table(ctx, divisor, sequence_parallel), randn(4, 4, 32)
    weight = table.weight
    whole = gathered(weight.detach(), weight.spec, ctx).requires_grad_()
    if accumulator:
        weight.main_grad = torch.zeros_like(weight)
    y = table(IDS)
    expected = F.embedding(IDS, whole)
    assert torch.equal(all_gather(y.detach(), ctx.tp) if sequence_parallel else y, expected)

    expected.backward(upstream)
    y.backward(upstream.chunk(ctx.tp.size)[ctx.rank] if sequence_parallel else upstream)
    grad = weight.main_grad if accumulator else weight.grad
    torch.testing.assert_close(gathered(grad, weight.spec, ctx), whole.grad, rtol=1e-13, atol=1e-13)
    padding = grad[weight.spec.stop - weight.spec.start :]
    assert not padding.any(), "padding rows have a gradient"


def test_the_accumulator_is_added_to_and_signalled() -> None:
    table, heard = _table(ALONE, 1, False), []
    table.weight.main_grad = torch.ones_like(table.weight)
    table.weight.on_gradient = heard.append
    table(IDS).sum().backward()
    assert heard == [table.weight]
    assert table.weight.main_grad[5].eq(3).all()  # id 5 was looked up twice
