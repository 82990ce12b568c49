# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.config.model import ModelConfig
from megatron_core.planner.flops import flops_per_step, flops_per_token, forward_flops


def gpt(layers: int, hidden: int, heads: int, seq: int, vocab: int, **more: object) -> ModelConfig:
    return ModelConfig(
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        seq_length=seq,
        vocab_size=vocab,
        **more,  # type: ignore[arg-type]
    )


@settings(deadline=None)
@given(
    st.integers(1, 120),
    st.integers(1, 64),
    st.integers(1, 64),
    st.integers(1, 4096),
    st.integers(1, 10**5),
    st.integers(1, 9),
)
def test_equals_the_papers_formula_for_a_plain_gpt(
    layers: int, heads: int, dim: int, seq: int, vocab: int, batch: int
) -> None:
    """SC21 section 5.1 without recomputation: 72 B s L h^2 (1 + s/6h + v/12Lh), in integers."""
    h = heads * dim
    paper = 72 * batch * seq * layers * h * h + 12 * batch * seq * layers * h * seq + 6 * batch * seq * h * vocab
    assert flops_per_step(gpt(layers, h, heads, seq, vocab), batch) == paper


def test_gpt3_of_the_paper() -> None:
    """SC21 writes its formula with the forward pass of all layers done again: 96 B s L h^2 (1 + s/6h + v/16Lh)."""
    one = forward_flops(gpt(96, 12288, 96, 2048, 51200))
    with_recompute = 4 * 96 * one.layer + 3 * one.head
    paper = 96 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    assert with_recompute == pytest.approx(paper, rel=1e-12)


def test_llama_with_grouped_queries_and_a_gated_mlp() -> None:
    """Llama 3 8B by hand, one token: per layer 2 * (q + k,v + o + three MLP matrices) + 4 s h; head 2 h v."""
    llama = gpt(
        32, 4096, 32, 8192, 128256, ffn_hidden_size=14336, swiglu=True, group_query_attention=True, num_query_groups=8
    )
    matrices = 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 4096 + 3 * 4096 * 14336
    assert flops_per_token(llama) == 3 * (32 * (2 * matrices + 4 * 8192 * 4096) + 2 * 4096 * 128256)


def test_heads_may_be_wider_than_the_hidden_size() -> None:
    """--kv-channels 128 with 8 heads and hidden 512: projections and attention follow a*d = 1024, not h."""
    one = forward_flops(gpt(1, 512, 8, 64, 100, kv_channels=128))
    assert one.projections == 2 * 512 * 3 * 1024 + 2 * 1024 * 512
    assert one.attention == 4 * 64 * 1024


def test_padding_of_the_vocabulary_is_not_work() -> None:
    padded = gpt(2, 64, 4, 32, 101, padded_vocab_size=1024)
    assert flops_per_token(padded) == flops_per_token(gpt(2, 64, 4, 32, 101))
