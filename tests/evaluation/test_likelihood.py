# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.evaluation.likelihood import Tail, likelihoods
from megatron_core.inference.logits import logits
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, in_place
from tests.rank_pool import ranks

TAILS = [
    Tail(torch.randint(37, (length,), generator=torch.Generator().manual_seed(length)).tolist(), scored)
    for length, scored in ((5, 4), (16, 1), (2, 1), (9, 3), (16, 15), (3, 2))
]


def by_hand(tail: Tail) -> float:
    """One forward, one token at a time."""
    found = logits(in_place(GPT2), torch.tensor([tail.tokens])).log_softmax(-1)[0]
    places = range(len(tail.tokens) - tail.scored, len(tail.tokens))
    return sum(float(found[place - 1, tail.tokens[place]]) for place in places)


@ranks({}, {"tp": 2}, {"pp": 2}, {"dp": 2})
def test_in_order_whatever_is_scored_together(ctx: ParallelContext) -> None:
    done: list[int] = []
    found = likelihoods(in_place(GPT2, ctx), TAILS, done.append, batch_tokens=1)
    assert [each.log_probability for each in found] == pytest.approx([by_hand(tail) for tail in TAILS], rel=1e-10)
    assert sum(done) == sum(len(tail.tokens) for tail in TAILS) and len(done) > 1


def test_greedy_where_all_scored_tokens_are_the_most_probable() -> None:
    model = in_place(GPT2)
    tokens = [3, 1, 4]
    for _ in range(4):
        tokens.append(int(logits(model, torch.tensor([tokens]))[0, -1].argmax()))
    other = [*tokens[:-2], (tokens[-2] + 1) % 37, tokens[-1]]
    found = likelihoods(model, [Tail(tokens, 4), Tail(other, 2), Tail(tokens[:4], 1)])
    assert [each.greedy for each in found] == [True, False, True]


def test_a_tail_needs_something_before_it() -> None:
    for scored in (0, 3):
        with pytest.raises(AssertionError, match=f"{scored} of 3 tokens"):
            Tail([1, 2, 3], scored)
    assert likelihoods(in_place(GPT2), []) == []
