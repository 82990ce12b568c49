# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.evaluation.likelihood import joint_likelihoods, likelihoods
from megatron_core.evaluation.tails import Tail
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

    def greedy_after(tokens: list[int]) -> list[int]:
        return [*tokens, int(logits(model, torch.tensor([tokens]))[0, -1].argmax())]

    right = greedy_after(greedy_after([3, 1, 4]))
    half = greedy_after([*right[:3], (right[3] + 1) % 37])
    found = likelihoods(model, [Tail(right, 2), Tail(half, 2), Tail(half, 1)])
    assert [each.greedy for each in found] == [True, False, True]


def test_the_parts_of_a_group_count_together() -> None:
    model = in_place(GPT2)
    each = likelihoods(model, TAILS)
    found = joint_likelihoods(model, [TAILS[:2], [], TAILS[2:]])
    totals = [sum(part.log_probability for part in parts) for parts in (each[:2], [], each[2:])]
    assert [group.log_probability for group in found] == pytest.approx(totals, rel=1e-10)
    assert [group.greedy for group in found] == [False, True, False]
    assert likelihoods(model, []) == []
