# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.inference.logits import logits
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import MODELS, in_place
from tests.rank_pool import ranks

TOKENS = torch.randint(37, (3, 7), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", MODELS)
@ranks({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2})
def test_every_layout_gives_the_same_logits(ctx: ParallelContext, name: str) -> None:
    expected = logits(in_place(MODELS[name]), TOKENS)
    for chunks in (1, 2):
        for _ in range(2):  # a second batch leaves before the first one's sends were waited for
            found = logits(in_place(MODELS[name], ctx, chunks_a_stage=chunks), TOKENS)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@ranks({"tp": 2}, {"tp": 2, "pp": 2})
def test_chunks_of_a_run_with_sequence_parallelism(ctx: ParallelContext) -> None:
    """7 tokens do not divide by 2: they are padded, which shows nowhere."""
    found = logits(in_place(MODELS["gpt2"], ctx, sequence_parallel=True), TOKENS)
    torch.testing.assert_close(found, logits(in_place(MODELS["gpt2"]), TOKENS), rtol=1e-10, atol=1e-12)


def test_what_stands_right_of_a_token_changes_nothing() -> None:
    model = in_place(MODELS["llama"])
    torch.testing.assert_close(logits(model, TOKENS)[:, :4], logits(model, TOKENS[:, :4]), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
@ranks({}, {"tp": 2}, {"pp": 2})
def test_packed_weights_take_the_place_of_the_others(ctx: ParallelContext, name: str) -> None:
    expected = logits(in_place(MODELS[name], dtype=torch.float32), TOKENS)
    model = in_place(MODELS[name], ctx, dtype=torch.float32)
    before = sum(p.numel() for chunk in model.chunks for p in chunk.parameters())
    model.pack_weights()
    assert sum(p.numel() for chunk in model.chunks for p in chunk.parameters()) < before / 2
    torch.testing.assert_close(logits(model, TOKENS), expected, rtol=1e-4, atol=1e-4)
    double = in_place(MODELS[name], ctx)
    double.pack_weights()  # for which there are no such products
    torch.testing.assert_close(logits(double, TOKENS), logits(in_place(MODELS[name]), TOKENS), rtol=1e-10, atol=1e-12)
