# SPDX-License-Identifier: Apache-2.0
"""The whole model: sizes of known models, and the same weights, loss and gradients at every layout."""

import math
from dataclasses import replace

import pytest
import torch

from megatron_core.config.model import ModelConfig
from megatron_core.kernels.dropout import DropoutKey
from megatron_core.model import parameters
from megatron_core.model.gpt import ChunkPlan, GPTChunk, build_chunks
from megatron_core.parallel.collectives import all_gather
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.tensor_parallel.shard_spec import spec_parameters
from tests.rank_pool import ranks
from tests.small_model import (
    ALONE,
    assert_same,
    gathered_gradients,
    gathered_weights,
    make_factory,
    make_microbatch,
    make_model,
    small,
)

GPT2 = ModelConfig(
    num_layers=12,
    hidden_size=768,
    num_attention_heads=12,
    seq_length=1024,
    max_position_embeddings=1024,
    vocab_size=50257,
)
LLAMA = {
    "normalization": "RMSNorm",
    "swiglu": True,
    "position_embedding_type": "rope",
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
LLAMA2_7B = ModelConfig(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    seq_length=4096,
    ffn_hidden_size=11008,
    vocab_size=32000,
    **LLAMA,
)
LLAMA3_8B = ModelConfig(
    num_layers=32,
    hidden_size=4096,
    num_attention_heads=32,
    seq_length=8192,
    ffn_hidden_size=14336,
    vocab_size=128256,
    group_query_attention=True,
    num_query_groups=8,
    **LLAMA,
)
VARIANTS = {
    "gpt2": {},
    "llama": LLAMA,
    "grouped": LLAMA | {"group_query_attention": True, "num_query_groups": 2, "qk_layernorm": True},
    "one_group_biases": {"group_query_attention": True, "num_query_groups": 1, "embed_layernorm": True},
    "dropout_z_loss": {"hidden_dropout": 0.1, "attention_dropout": 0.1, "z_loss_coeff": 0.01},
    "padded": {"make_vocab_size_divisible_by": 128, "embedding_gradient_shrink": 0.1},
}


@pytest.mark.parametrize("config, count", [(GPT2, 124_439_808), (LLAMA2_7B, 6_738_415_616), (LLAMA3_8B, 8_030_261_248)])
def test_sizes_of_known_models(config: ModelConfig, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "normal", lambda spec, *a, **options: torch.empty(spec.local_shape, device="meta"))
    model = make_model(make_factory(config, single_process_context(torch.device("meta")), dtype=torch.float32))
    assert sum(math.prod(p.spec.shape) for p in spec_parameters(model)) == count


def _run(config: ModelConfig, ctx: ParallelContext, sequence_parallel: bool = False) -> tuple[torch.Tensor, dict]:
    model = make_model(make_factory(config, ctx, sequence_parallel=sequence_parallel))
    losses = model(None, make_microbatch(config, dropout=DropoutKey(1, 0, (0, 1))))
    losses.mean().backward()
    return losses.detach(), gathered_gradients(model, ctx)


def _check_equal_to_one_process(ctx: ParallelContext, variant: str, sequence_parallel: bool) -> None:
    config = small(**({"make_vocab_size_divisible_by": 1} | VARIANTS[variant]))
    losses, gradients = _run(config, ctx, sequence_parallel)
    expected_losses, expected = _run(config, ALONE)
    assert_same({"losses": losses}, {"losses": expected_losses})
    assert_same(gradients, expected)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in ("grouped", "one_group_biases")])
@ranks({"tp": 2}, {"tp": 4})
def test_loss_and_gradients_equal_one_process(ctx: ParallelContext, variant: str, sequence_parallel: bool) -> None:
    _check_equal_to_one_process(ctx, variant, sequence_parallel)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks({"tp": 2}, {"tp": 4, "kv_replicas": 2})
def test_grouped_queries_equal_one_process(ctx: ParallelContext, sequence_parallel: bool) -> None:
    _check_equal_to_one_process(ctx, "grouped", sequence_parallel)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@ranks({"tp": 2, "kv_replicas": 2}, {"tp": 4, "kv_replicas": 4})
def test_one_query_group_equals_one_process(ctx: ParallelContext, sequence_parallel: bool) -> None:
    _check_equal_to_one_process(ctx, "one_group_biases", sequence_parallel)


WIDE = {"hidden_size": 256, "num_layers": 3}


@ranks({"tp": 2}, {"tp": 4})
def test_weights_are_bitwise_those_of_one_process(ctx: ParallelContext) -> None:
    alone, cut = (make_model(make_factory(small(**WIDE), c, dtype=torch.float32)) for c in (ALONE, ctx))
    expected, got = gathered_weights(alone, ALONE), gathered_weights(cut, ctx)
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    for parameter in spec_parameters(cut):
        if parameter.spec.dim is not None and parameter.spec.decayed and "tokens" not in parameter.spec.name:
            shards = all_gather(parameter.detach().unsqueeze(0), ctx.tp)
            assert not torch.equal(shards[0], shards[1]), f"{parameter.spec.name} has equal shards"
            assert shards[0].std().item() == pytest.approx(shards[1].std().item(), rel=0.02)


def _stages(config: ModelConfig) -> list[GPTChunk]:
    plans = [ChunkPlan(range(2), True, False), ChunkPlan(range(2, 3), False, True)]
    return [make_model(make_factory(config), plan) for plan in plans]


@pytest.mark.parametrize("untied", [False, True])
def test_stages_hold_the_weights_of_the_whole(untied: bool) -> None:
    config = small(**WIDE, untie_embeddings_and_output_weights=untied)
    expected = gathered_weights(make_model(make_factory(config)), ALONE)
    held = [parameter for stage in _stages(config) for parameter in spec_parameters(stage)]
    assert {parameter.spec.name for parameter in held} == set(expected)
    for parameter in held:
        assert torch.equal(parameter.spec.real(parameter), expected[parameter.spec.name]), parameter.spec.name
    layers = [expected[f"layers.{layer}.mlp.up.weight"] for layer in range(3)]
    assert not torch.equal(layers[0], layers[2])


def test_stages_one_after_the_other_are_the_model() -> None:
    config = small(num_layers=3, hidden_dropout=0.1)
    batch = make_microbatch(config, dropout=DropoutKey(1, 0, (0, 1)))
    first, last = _stages(config)
    whole = make_model(make_factory(config))
    assert torch.equal(last(first(None, batch), batch), whole(None, batch))


def test_a_tied_table_is_counted_once() -> None:
    (whole,) = build_chunks(make_factory(), [ChunkPlan(range(2))])
    assert whole.head.linear.weights[0] is whole.embedding.tokens.weight
    spec = whole.embedding.tokens.weight.spec
    assert (spec.tied, spec.counted, spec.gradients) == (False, True, 2)
    first, last = _stages(small(num_layers=3))
    ends = [first.embedding.tokens.weight.spec, last.head.linear.weights[0].spec]
    assert [(s.tied, s.counted, s.gradients) for s in ends] == [(True, True, 1), (True, False, 1)]
    assert ends[0].name == ends[1].name == "embedding.tokens.weight"


def test_chunks_of_one_rank_share_a_tied_table() -> None:
    plans = [ChunkPlan(range(1), True, False), ChunkPlan(range(1, 2), False, True)]
    first, last = build_chunks(make_factory(), plans)
    assert first.embedding.tokens.weight is last.head.linear.weights[0]
    assert first.embedding.tokens.weight.spec.gradients == 2


def test_the_first_loss_is_near_the_log_of_the_vocabulary() -> None:
    losses, _ = _run(small(), ALONE)
    assert losses.mean().item() == pytest.approx(math.log(37), abs=0.1)


@pytest.mark.parametrize("missing", ["hidden", "tokens", "labels"])
def test_missing_inputs_are_bugs(missing: str) -> None:
    first, last = _stages(small(num_layers=3))
    batch = make_microbatch()
    with pytest.raises(AssertionError, match="needs"):
        if missing == "hidden":
            last(None, batch)
        elif missing == "tokens":
            first(None, replace(batch, tokens=None))
        else:
            last(first(None, batch), replace(batch, labels=None))
