# SPDX-License-Identifier: Apache-2.0
"""The work of all parts adds up to the papers' FLOPs, whatever the layout."""

import dataclasses

import pytest

from megatron_core.config.model import ModelConfig
from megatron_core.planner.flops import forward_flops
from megatron_core.planner.work import Matmul, Pass, Shape, embedding, flops, head, layer

GPT = ModelConfig(
    num_layers=4, hidden_size=512, num_attention_heads=8, seq_length=256, vocab_size=1024, max_position_embeddings=256
)
LLAMA = dataclasses.replace(
    GPT, swiglu=True, ffn_hidden_size=1536, group_query_attention=True, num_query_groups=4, add_bias_linear=False
)


def shape(model: ModelConfig, **more: object) -> Shape:
    values = {"tp": 1, "micro_batch": 2, "sequence_parallel": False, "flash_attention": False} | more
    return Shape(model=model, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [GPT, LLAMA])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_layers_products_are_the_models_flops(model: ModelConfig, tp: int) -> None:
    part, tokens = layer(shape(model, tp=tp)), 2 * 256
    whole = tokens * forward_flops(model).layer
    assert flops(part.forward) * tp == whole
    assert (flops(part.input_gradient) + flops(part.weight_gradient)) * tp == 2 * whole


def test_the_heads_products_are_the_models_flops() -> None:
    part, tokens = head(shape(GPT, tp=2), 512), 2 * 256
    assert flops(part.forward) * 2 == tokens * forward_flops(GPT).head
    assert (flops(part.input_gradient) + flops(part.weight_gradient)) * 2 == 2 * tokens * forward_flops(GPT).head


def test_a_flash_kernel_leaves_half_of_the_square_out_and_no_scores_in_memory() -> None:
    plain, flash = layer(shape(GPT)), layer(shape(GPT, flash_attention=True))
    assert flops(flash.core) * 2 == flops(plain.core)
    scores = 2 * 8 * 256 * 256 * 2  # b a s s elements of 2 bytes
    # softmax reads and writes, dropout reads and writes and has a mask of one byte an element
    assert _bytes(plain.forward) - _bytes(flash.forward) == scores * 9 // 2


def test_without_dropout_attention_passes_over_its_scores_once_less() -> None:
    none = dataclasses.replace(GPT, attention_dropout=0.0)
    assert _bytes(layer(shape(GPT)).core) - _bytes(layer(shape(none)).core) == 2 * 8 * 256 * 256 * 5


def test_sequence_parallelism_shares_the_residual_stream_out() -> None:
    plain, cut = (layer(shape(GPT, tp=4, sequence_parallel=yes)) for yes in (False, True))
    stream = 2 * 256 * 512 * 2
    assert _bytes(plain.forward) - _bytes(cut.forward) == 11 * stream * 3 // 4
    assert plain.message_bytes == cut.message_bytes == stream


def test_the_embedding_multiplies_nothing() -> None:
    assert flops(embedding(shape(GPT)).forward) == 0


def _bytes(work: tuple[Matmul | Pass, ...]) -> int:
    return sum(one.nbytes for one in work if isinstance(one, Pass))
