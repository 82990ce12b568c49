# SPDX-License-Identifier: Apache-2.0
"""Two residual branches, and dropout that hits the same elements at any tensor or sequence parallelism."""

import pytest
import torch

from megatron_core.attention.self_attention import AttentionInputs
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.model.block import Block
from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import ALONE, assert_same, gathered_gradients, make_factory, randn, small

PLAIN = AttentionInputs(rotary=None, mask=None, dropout=None)
KEYED = AttentionInputs(rotary=None, mask=None, dropout=DropoutKey(1, 2, (3, 4)))


def test_branches_that_write_nothing_leave_the_stream_alone() -> None:
    block = Block(make_factory(), 0)
    with torch.no_grad():
        block.attention.output.weight.zero_()
        block.mlp.down.weight.zero_()
    x = randn(16, 2, 32)
    assert torch.equal(block(x, PLAIN, 16), x)


def test_norms_stand_before_the_branches() -> None:
    block, x = Block(make_factory(), 0), randn(16, 2, 32)
    middle = x + block.attention(block.attention_norm(x), PLAIN)
    torch.testing.assert_close(block(x, PLAIN, 16), middle + block.mlp(block.mlp_norm(middle)))


def test_parallel_branches_read_the_same_input() -> None:
    block, x = Block(make_factory(small(use_parallel_residual=True)), 0), randn(16, 2, 32)
    branches = block.attention(block.attention_norm(x), PLAIN) + block.mlp(block.mlp_norm(x))
    torch.testing.assert_close(block(x, PLAIN, 16), x + branches)


def test_the_two_places_drop_different_elements() -> None:
    block, x = Block(make_factory(small(hidden_dropout=0.5)), 0), torch.zeros(16, 2, 32, dtype=torch.float64)
    with torch.no_grad():
        block.attention.output.bias.fill_(1.0)
        block.mlp.down.weight.zero_()
        block.mlp.down.bias.fill_(10.0)
        values = block(x, KEYED, 16).unique().tolist()
    assert values == pytest.approx([0.0, 2.0, 20.0, 22.0])


@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks({"tp": 2}, {"tp": 4})
def test_with_dropout_it_equals_one_process(ctx: ParallelContext, sequence_parallel: bool) -> None:
    config = small(hidden_dropout=0.2, attention_dropout=0.2)
    alone, cut = (
        Block(make_factory(config, context, sequence_parallel=sequence_parallel), 1) for context in (ALONE, ctx)
    )
    x, upstream = randn(16, 2, 32), randn(16, 2, 32, seed=1)
    expected = alone(x, KEYED, 16)
    expected.backward(upstream)
    if sequence_parallel:
        x, upstream = x.chunk(ctx.tp.size)[ctx.rank], upstream.chunk(ctx.tp.size)[ctx.rank]
    got = cut(x, KEYED, 16)
    got.backward(upstream)
    whole = all_gather(got.detach(), ctx.tp) if sequence_parallel else got
    torch.testing.assert_close(whole, expected, rtol=1e-11, atol=1e-13)
    assert_same(gathered_gradients(cut, ctx), gathered_gradients(alone, ALONE))
