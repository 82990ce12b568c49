# SPDX-License-Identifier: Apache-2.0
"""From tokens to the residual stream: tables, BLOOM's norm, GLM's gradient shrink."""

import pytest
import torch

from megatron_core.config.model import ModelConfig
from megatron_core.model.embedding import Embedding, vocabulary_weight
from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import ALONE, make_factory, make_microbatch, small


def _embedding(config: ModelConfig, ctx: ParallelContext = ALONE, *, sequence_parallel: bool = False) -> Embedding:
    factory = make_factory(config, ctx, sequence_parallel=sequence_parallel)
    return Embedding(factory, vocabulary_weight(factory, "embedding.tokens.weight"))


def test_tokens_and_positions_are_added() -> None:
    config = small()
    embedding, batch = _embedding(config), make_microbatch(config)
    x = embedding(batch)
    assert x.shape == (16, 2, 32)
    expected = embedding.tokens.weight[batch.tokens[1, 3]] + embedding.positions.weight[3]
    torch.testing.assert_close(x[3, 1], expected)


@pytest.mark.parametrize("kind", ["rope", "none"])
def test_other_positions_need_no_table(kind: str) -> None:
    assert _embedding(small(position_embedding_type=kind)).positions is None


def test_embed_layernorm_stands_between_tokens_and_positions() -> None:
    config = small(embed_layernorm=True)
    embedding, batch = _embedding(config), make_microbatch(config)
    with torch.no_grad():
        x = embedding(batch) - embedding.positions(batch.position_ids)
    torch.testing.assert_close(x.mean(-1), torch.zeros(16, 2, dtype=torch.float64), rtol=0, atol=1e-12)
    variance = embedding.tokens(batch.tokens.t()).var(-1, correction=0)
    torch.testing.assert_close(x.var(-1, correction=0), variance / (variance + config.norm_epsilon))


def test_the_shrink_changes_gradients_of_tokens_alone() -> None:
    found = []
    for shrink in (1.0, 0.1):
        config = small(embedding_gradient_shrink=shrink)
        embedding = _embedding(config)
        x = embedding(make_microbatch(config))
        x.square().sum().backward()
        found.append((x.detach(), embedding.tokens.weight.grad, embedding.positions.weight.grad))
    (x, tokens, positions), (x_shrunk, tokens_shrunk, positions_shrunk) = found
    assert torch.equal(x_shrunk, x) and torch.equal(positions_shrunk, positions)
    torch.testing.assert_close(tokens_shrunk, 0.1 * tokens, rtol=1e-13, atol=0)


def test_padding_rows_are_zero_and_stay_out_of_the_spec() -> None:
    weight = vocabulary_weight(make_factory(small()), "w")
    assert weight.shape == (128, 32) and weight.spec.shape == (37, 32)
    assert not weight[37:].any() and weight[:37].all()


@ranks({"tp": 2}, {"tp": 4})
def test_sequence_parallel_ranks_embed_their_own_positions(ctx: ParallelContext) -> None:
    config = small(embed_layernorm=True)
    batch = make_microbatch(config)
    expected = _embedding(config)(batch)
    assert torch.equal(_embedding(config, ctx)(batch), expected)
    part = _embedding(config, ctx, sequence_parallel=True)(batch)
    assert part.shape[0] == 16 // ctx.tp.size
    assert torch.equal(all_gather(part.detach(), ctx.tp), expected)
