# SPDX-License-Identifier: Apache-2.0
"""One layer's attention in the model: options that must not change its function, and documents that must not leak."""

from dataclasses import replace

import pytest
import torch

from megatron_core.attention.self_attention import AttentionInputs
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.model.attention_layer import build_attention
from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import ALONE, SMALL, make_factory, make_microbatch, make_model, randn, small

PLAIN = AttentionInputs(rotary=None, mask=None, dropout=None)


def test_matches_torch_multihead_attention() -> None:
    attention = build_attention(make_factory(), layer=0)
    reference = torch.nn.MultiheadAttention(32, 4, dtype=torch.float64)
    q, kv = attention.qkv.weights
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([q.view(32, 32), kv[:, 0].reshape(32, 32), kv[:, 1].reshape(32, 32)]))
        reference.out_proj.weight.copy_(attention.output.weight.view(32, 32))
        reference.in_proj_bias.zero_()
        reference.out_proj.bias.zero_()
    x = randn(16, 2, 32)
    mask = torch.ones(16, 16, dtype=torch.bool).triu(1)
    expected, _ = reference(x, x, x, attn_mask=mask, need_weights=False)
    torch.testing.assert_close(attention(x, PLAIN), expected, rtol=1e-11, atol=1e-13)


def test_query_key_layer_scaling_cancels() -> None:
    x = randn(16, 2, 32)
    plain = build_attention(make_factory(), layer=6)(x, PLAIN)
    scaled = build_attention(make_factory(small(apply_query_key_layer_scaling=True)), layer=6)(x, PLAIN)
    torch.testing.assert_close(scaled, plain, rtol=1e-11, atol=1e-13)


def test_equal_groups_are_the_same_function_as_heads() -> None:
    grouped = build_attention(make_factory(small(group_query_attention=True, num_query_groups=2)), layer=0)
    full = build_attention(make_factory(), layer=0)
    with torch.no_grad():
        for own, other in zip(full.qkv.weights, grouped.qkv.weights):
            own.copy_(other if own.shape == other.shape else other.repeat_interleave(2, 0))
        full.output.weight.copy_(grouped.output.weight)
    x = randn(16, 2, 32)
    torch.testing.assert_close(grouped(x, PLAIN), full(x, PLAIN), rtol=1e-11, atol=1e-13)


def test_query_key_norm_makes_their_scale_irrelevant() -> None:
    attention = build_attention(make_factory(small(qk_layernorm=True, norm_epsilon=1e-30)), layer=0)
    x = randn(16, 2, 32)
    before = attention(x, PLAIN)
    with torch.no_grad():
        attention.qkv.weights[0].mul_(10)
    torch.testing.assert_close(attention(x, PLAIN), before, rtol=1e-10, atol=1e-13)


def _with_documents(changed: bool, position_embedding_type: str, ctx: ParallelContext = ALONE) -> torch.Tensor:
    """Logits [s, b, rows] of documents of 6 and 10 tokens, positions restarted; `changed`: another first document."""
    config = small(position_embedding_type=position_embedding_type, make_vocab_size_divisible_by=1)
    batch = make_microbatch(config, b=1)
    assert batch.tokens is not None, "the microbatch has tokens"
    tokens = batch.tokens.clone()
    if changed:
        tokens[:, :6] = (tokens[:, :6] + 1) % config.vocabulary
    ids = torch.tensor([[0] * 6 + [1] * 10])
    positions = torch.cat([torch.arange(6), torch.arange(10)]).unsqueeze(0)
    model = make_model(make_factory(config, ctx))
    with torch.no_grad():
        stream = model.residual_stream(None, replace(batch, tokens=tokens, document_ids=ids, position_ids=positions))
        return model.head.logits(stream)


@pytest.mark.parametrize("position_embedding_type", ["learned_absolute", "rope"])
@ranks({"tp": 1}, {"tp": 2})
def test_the_first_document_does_not_leak_into_the_second(ctx: ParallelContext, position_embedding_type: str) -> None:
    one, other = (_with_documents(changed, position_embedding_type, ctx) for changed in (False, True))
    assert torch.equal(one[6:], other[6:])
    assert not torch.equal(one[:6], other[:6])


def test_a_document_alone_gives_the_same_logits() -> None:
    packed = _with_documents(False, "rope")
    config = small(position_embedding_type="rope", make_vocab_size_divisible_by=1)
    batch = make_microbatch(small(), b=1)
    model = make_model(make_factory(config))
    alone = replace(batch, tokens=batch.tokens[:, 6:], position_ids=torch.arange(10).unsqueeze(0))
    with torch.no_grad():
        logits = model.head.logits(model.residual_stream(None, alone))
    torch.testing.assert_close(packed[6:], logits, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("groups", [4, 2, 1])
@ranks({"tp": 2}, {"tp": 4})
def test_dropout_hits_the_same_probabilities_at_any_tp(ctx: ParallelContext, groups: int) -> None:
    config = small(attention_dropout=0.3, group_query_attention=True, num_query_groups=groups)
    inputs = AttentionInputs(rotary=None, mask=None, dropout=DropoutKey(1, 2, (3, 4)))
    x = randn(16, 2, 32)
    expected = build_attention(make_factory(config), layer=1)(x, inputs)
    got = build_attention(make_factory(config, ctx), layer=1)(x, inputs)
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)
    part = x.chunk(ctx.tp.size)[ctx.rank]
    cut = build_attention(make_factory(config, ctx, sequence_parallel=True), layer=1)(part, inputs)
    torch.testing.assert_close(all_gather(cut.detach(), ctx.tp), expected.detach(), rtol=1e-11, atol=1e-13)


def test_dropout_needs_a_key() -> None:
    x = randn(16, 2, 32)
    dropping = build_attention(make_factory(small(attention_dropout=0.3)), layer=0)
    assert torch.equal(dropping(x, PLAIN), build_attention(make_factory(SMALL), layer=0)(x, PLAIN))
    keyed = AttentionInputs(rotary=None, mask=None, dropout=DropoutKey(1, 2, (3, 4)))
    assert not torch.equal(dropping(x, keyed), dropping(x, PLAIN))
