# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from megatron_core.inference.logits import logits
from megatron_core.inference.score import score
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, LLAMA, in_place
from tests.rank_pool import ranks
from tests.small_model import small

_GENERATOR = torch.Generator().manual_seed(5)
SEQUENCES = [torch.randint(37, (n,), generator=_GENERATOR).tolist() for n in (5, 1, 12, 0, 2, 16, 7, 12)]


def check(ctx: ParallelContext, *, chunks: int = 1, sequence_parallel: bool = False) -> None:
    model = in_place(LLAMA, ctx, chunks_a_stage=chunks, sequence_parallel=sequence_parallel)
    alone = in_place(LLAMA)
    for tokens, scores in zip(SEQUENCES, score(model, SEQUENCES, batch_tokens=20), strict=True):
        assert len(scores.log_probabilities) == max(len(tokens) - 1, 0)
        if len(tokens) < 2:
            continue
        row = logits(alone, torch.tensor([tokens[:-1]]))[0]
        expected = row.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        torch.testing.assert_close(scores.log_probabilities, expected, rtol=1e-10, atol=1e-12)
        assert scores.greedy.tolist() == (row.argmax(-1) == torch.tensor(tokens[1:])).tolist()


def test_each_sequence_is_scored_as_if_alone() -> None:
    check(in_place(LLAMA).ctx)


@ranks({"tp": 2}, {"pp": 2}, {"dp": 3}, {"tp": 2, "pp": 2})
def test_every_layout_gives_the_same_scores(ctx: ParallelContext) -> None:
    check(ctx)


@ranks({"tp": 2, "pp": 2})
def test_chunks_of_a_live_run(ctx: ParallelContext) -> None:
    check(ctx, chunks=2, sequence_parallel=True)


def test_a_part_of_the_tokens() -> None:
    model = in_place(GPT2)
    first = [3, 1, 12, 1, 1, 15, 4, 1]
    for tokens, start, part, all_of in zip(
        SEQUENCES, first, score(model, SEQUENCES, first=first), score(model, SEQUENCES), strict=True
    ):
        assert len(part.log_probabilities) == max(len(tokens) - start, 0)
        torch.testing.assert_close(part.log_probabilities, all_of.log_probabilities[start - 1 :], rtol=1e-12, atol=0)
        assert part.greedy.tolist() == all_of.greedy[start - 1 :].tolist()
    with pytest.raises(AssertionError, match="nothing comes before"):
        score(model, SEQUENCES, first=[0] * 8)


@ranks({}, {"tp": 2}, {"tp": 4})
def test_of_equal_tokens_the_first_is_the_greedy_one(ctx: ParallelContext) -> None:
    """A head of zeros: all 64 are equally likely."""
    config = small(vocab_size=64, make_vocab_size_divisible_by=96, untie_embeddings_and_output_weights=True)
    model = in_place(config, ctx)
    with torch.no_grad():
        for chunk in model.chunks:
            chunk.head.linear.weights[0].zero_()
    (found,) = score(model, [[5, 0, 63, 0, 1]])
    torch.testing.assert_close(found.log_probabilities, torch.full((4,), -math.log(64), dtype=torch.float64))
    assert found.greedy.tolist() == [True, False, True, False]


@ranks({}, {"dp": 2}, {"pp": 2})
def test_nothing_to_score(ctx: ParallelContext) -> None:
    model = in_place(GPT2, ctx)
    assert score(model, []) == []
    assert [len(scores.greedy) for scores in score(model, [[3], []])] == [0, 0]
