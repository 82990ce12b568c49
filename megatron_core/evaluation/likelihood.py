# SPDX-License-Identifier: Apache-2.0
"""The log-probability of the last tokens of sequences: all that evaluation asks of a model.

Longest first, some batches at a time: memory runs out at once or never, and the time that is left is told too long
rather than too short.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from megatron_core.evaluation.tails import Tail
from megatron_core.inference.model import InferenceModel
from megatron_core.inference.score import score

BATCH_TOKENS = 4096
_BATCHES_A_REPORT = 8  # of each stage and each replica, so that most of the time the pipeline is full
Report = Callable[[int], None]
"""Told how many more tokens are done."""


@dataclass(frozen=True)
class Likelihood:
    """What the model gives to some tokens."""

    log_probability: float
    """Natural logarithm, summed over them."""
    greedy: bool
    """Whether each of them is the most probable one."""


def likelihoods(
    model: InferenceModel,
    tails: Sequence[Tail],
    report: Report | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Likelihood]:
    """One a tail, in their order. All ranks must call with the same, and get the same."""
    together = batch_tokens * _BATCHES_A_REPORT * model.ctx.dp.size * model.ctx.pp.size
    found: dict[int, Likelihood] = {}
    for numbers in _longest_first(tails, together):
        own = [tails[number] for number in numbers]
        scores = score(
            model,
            [tail.tokens for tail in own],
            first=[len(tail.tokens) - tail.scored for tail in own],
            batch_tokens=batch_tokens,
        )
        for number, each in zip(numbers, scores):
            found[number] = Likelihood(float(each.log_probabilities.sum()), bool(each.greedy.all()))
        if report is not None:
            report(sum(len(tail.tokens) for tail in own))
    return [found[number] for number in range(len(tails))]


def joint_likelihoods(
    model: InferenceModel,
    groups: Sequence[Sequence[Tail]],
    report: Report | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Likelihood]:
    """One a group: all of its tails together, such as the windows of a text. All ranks must call, and get the same."""
    tails = [tail for group in groups for tail in group]
    found = iter(likelihoods(model, tails, report, batch_tokens=batch_tokens))
    parts = [[next(found) for _ in group] for group in groups]
    return [
        Likelihood(math.fsum(part.log_probability for part in group), all(part.greedy for part in group))
        for group in parts
    ]


def _longest_first(tails: Sequence[Tail], tokens: int) -> Iterator[list[int]]:
    """Numbers of tails that hold so many tokens together, or a little more."""
    numbers: list[int] = []
    held = 0
    for number in sorted(range(len(tails)), key=lambda number: -len(tails[number].tokens)):
        numbers.append(number)
        held += len(tails[number].tokens)
        if held >= tokens:
            yield numbers
            numbers, held = [], 0
    if numbers:
        yield numbers
