# SPDX-License-Identifier: Apache-2.0
"""Reading comprehension: BoolQ (Clark et al., 2019) and RACE-h (Lai et al., 2017)."""

import ast
from typing import Any

from megatron_core.errors import DataError
from megatron_core.evaluation.fields import field, label, numbered, text, texts
from megatron_core.evaluation.question import Question, Row, Task, multiple_choice

_BLANK = "  _  ."
"""How RACE writes a gap at the end of a question."""
_LETTERS = {"A": 0, "B": 1, "C": 2, "D": 3}


def ask_boolq(row: Row) -> Question:
    """A passage and a question of yes or no."""
    prompt = f"{text(row, 'passage')}\nQuestion: {text(row, 'question')}?\nAnswer:"
    return multiple_choice(prompt, ("no", "yes"), label(row, numbered(2), "label", "answer"))


def ask_race(row: Row) -> Question:
    """The last question on an article, behind the others with their answers.

    A row is an article with its `problems`, as lm_eval has them, or with lists of `questions`, `options` and `answers`,
    as RACE itself has them, or with a single question, which then stands alone.
    """
    *before, asked = _problems(row)
    prompt = f"Article: {text(row, 'article')}\n\n"
    for problem in before:
        question, answer = text(problem, "question"), texts(problem, "options", 4)[_right(problem)]
        if question.endswith(_BLANK):
            prompt += f"{question[:-5]}{answer}\n"
        else:
            prompt += f"Question: {question}\nAnswer: {answer}\n"
    return multiple_choice(prompt + text(asked, "question"), texts(asked, "options", 4), _right(asked))


def _problems(row: Row) -> list[Row]:
    if "problems" in row:
        problems = _literal(row["problems"])
        if not isinstance(problems, list) or not problems or not all(isinstance(each, dict) for each in problems):
            raise DataError(f"problems is {row['problems']!r:.60}, not a list of questions")
        return list(problems)
    if "questions" in row:
        questions, options, answers = texts(row, "questions"), field(row, "options"), texts(row, "answers")
        if not isinstance(options, list):
            raise DataError(f"options is {options!r:.60}, not a list of them for each question")
        if not len(questions) == len(options) == len(answers) > 0:
            raise DataError(
                f"{len(questions)} questions, {len(options)} lists of options and {len(answers)} answers: one of each "
                "belongs to a question"
            )
        return [{"question": q, "options": o, "answer": a} for q, o, a in zip(questions, options, answers)]
    return [row]


def _literal(value: Any) -> Any:
    """The copy that lm_eval reads holds the problems as the text of a Python list."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def _right(problem: Row) -> int:
    return label(problem, _LETTERS, "answer")


BOOLQ = Task(
    name="boolq",
    area="reading comprehension",
    ask=ask_boolq,
    files=("boolq/validation.jsonl", "boolq/val.jsonl", "boolq/dev.jsonl"),
    training_files=("boolq/train.jsonl",),
)
RACE = Task(
    name="race",
    area="reading comprehension",
    ask=ask_race,
    files=("race/test.jsonl", "race/race_high_500_subset.jsonl", "race/high_test.jsonl"),
)
