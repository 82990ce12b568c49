# SPDX-License-Identifier: Apache-2.0
"""What every task comes down to: texts of which a model is to find one the most probable.

A row of a data set becomes a Question. Most tasks have one prompt and several continuations, WinoGrande several prompts
with one continuation, LAMBADA a single pair. Prompts and delimiters are those of lm_eval 0.4.13, so that scores can be
compared with what others publish.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Row = Mapping[str, Any]
Metric = Literal["acc", "acc_norm", "perplexity"]


@dataclass(frozen=True)
class Choice:
    """One of the answers: the model is asked for the probability of `continuation` behind `prompt`."""

    prompt: str
    continuation: str
    answer: str
    """The answer alone; acc_norm divides by its length in characters."""


@dataclass(frozen=True)
class Question:
    """What one row asks."""

    choices: tuple[Choice, ...]
    right: int
    """Index of the right choice."""
    solved: str
    """Prompt and right answer, as an example for other questions."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set with the way to ask it."""

    name: str
    area: str
    """Of MT-NLG's five."""
    ask: Callable[[Row], Question]
    """Raises DataError where the row lacks something."""
    metrics: tuple[Metric, ...] = ("acc",)
    files: tuple[str, ...]
    """Where it lies below a data directory: the first of these that is there, plain or with .gz behind."""
    training_files: tuple[str, ...] = ()
    """Where few-shot examples are taken from if it is there, likewise; else they come from the evaluated file."""


def multiple_choice(prompt: str, answers: tuple[str, ...], right: int) -> Question:
    """One prompt, and each answer behind a space."""
    choices = tuple(Choice(prompt, f" {answer}", answer) for answer in answers)
    return Question(choices, right, f"{prompt} {answers[right]}")
