# SPDX-License-Identifier: Apache-2.0
"""The scores of a task: how often the right choice is the most probable, and how sure that number is.

acc compares log-probabilities of whole continuations, acc_norm divides each by its answer's length in characters first.
A question of one choice (LAMBADA) counts as answered right where greedy decoding would give it; perplexity is a word's,
exp(-mean log-probability), not a token's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_core.errors import DataError
from megatron_core.evaluation.few_shot import draw_examples, prompt_of
from megatron_core.evaluation.likelihood import BATCH_TOKENS, Likelihood, Report, joint_likelihoods
from megatron_core.evaluation.question import Metric, Question, Task
from megatron_core.evaluation.tails import Tail
from megatron_core.evaluation.task_rows import TaskFile, read_questions
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.inference.model import InferenceModel


@dataclass(frozen=True)
class Estimate:
    """A mean over questions."""

    value: float
    standard_error: float
    """NaN for a single question."""


@dataclass(frozen=True, kw_only=True)
class AskedTask:
    """All that a model is asked for one task."""

    task: Task
    path: str
    num_fewshot: int
    questions: Sequence[Question]
    pairs: Sequence[tuple[str, str]]
    """(prompt, continuation) of the choices of all questions, one after the other."""


@dataclass(frozen=True)
class EncodedTask:
    """The same in a model's tokens."""

    asked: AskedTask
    tails: Sequence[Sequence[Tail]]
    """Of each pair."""

    @property
    def tokens(self) -> int:
        """What the model has to read."""
        return sum(len(tail.tokens) for tails in self.tails for tail in tails)


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """What came of it."""

    name: str
    path: str
    questions: int
    num_fewshot: int
    metrics: dict[Metric, Estimate]


def read_task(file: TaskFile, *, num_fewshot: int = 0, limit: int | None = None) -> AskedTask:
    """What a file asks; `limit`: only so many of its first rows. Raises DataError."""
    rows = read_questions(file.task, file.path)
    pool = rows
    if num_fewshot and file.training_path is not None:
        pool = read_questions(file.task, file.training_path)
    questions = rows[:limit]
    pairs = [
        (prompt_of([example.solved for example in examples], choice.prompt), choice.continuation)
        for question, examples in zip(questions, draw_examples(questions, pool, num_fewshot))
        for choice in question.choices
    ]
    return AskedTask(task=file.task, path=str(file.path), num_fewshot=num_fewshot, questions=questions, pairs=pairs)


def encode_task(asked: AskedTask, encoder: TextEncoder) -> EncodedTask:
    """Raises DataError as `TextEncoder.pairs`, with the task's file."""
    try:
        return EncodedTask(asked, encoder.pairs(asked.pairs))
    except DataError as error:
        raise DataError(f"{asked.path}: {error}") from error


def score_task(
    model: InferenceModel,
    encoded: EncodedTask,
    report: Report | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> TaskScores:
    """Ask a model. All ranks must call, and get the same."""
    asked = encoded.asked
    found = iter(joint_likelihoods(model, encoded.tails, report, batch_tokens=batch_tokens))
    answers = [[next(found) for _ in question.choices] for question in asked.questions]
    return TaskScores(
        name=asked.task.name,
        path=asked.path,
        questions=len(asked.questions),
        num_fewshot=asked.num_fewshot,
        metrics={metric: estimate(metric, asked.questions, answers) for metric in asked.task.metrics},
    )


def estimate(metric: Metric, questions: Sequence[Question], answers: Sequence[Sequence[Likelihood]]) -> Estimate:
    """A metric from the likelihoods of each question's choices."""
    if metric == "perplexity":
        mean = _mean([-each.log_probability for (each,) in answers])
        perplexity = math.exp(mean.value) if mean.value < 709 else math.inf
        return Estimate(perplexity, perplexity * mean.standard_error)  # to first order in the error
    right = [_is_right(metric, question, each) for question, each in zip(questions, answers)]
    return _mean([float(each) for each in right])


def _is_right(metric: Metric, question: Question, answers: Sequence[Likelihood]) -> bool:
    if len(answers) == 1:
        return answers[0].greedy
    lengths = [len(choice.answer) if metric == "acc_norm" else 1 for choice in question.choices]
    values = [each.log_probability / max(length, 1) for each, length in zip(answers, lengths)]
    return values.index(max(values)) == question.right  # of equals the first


def _mean(values: Sequence[float]) -> Estimate:
    """Mean and its standard error, from the sample's variance."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, math.nan)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Estimate(mean, math.sqrt(variance / n))
