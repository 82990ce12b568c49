# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from megatron_core.errors import DataError
from megatron_core.evaluation.tasks.reading import ask_boolq, ask_race

PROBLEMS: list[dict[str, Any]] = [
    {"question": "The sky is  _  .", "options": ["red", "blue", "old", "new"], "answer": "B"},
    {"question": "Who sings?", "options": ["a cat", "a bird", "a dog", "a fish"], "answer": "A"},
    {"question": "The end is  _  .", "options": ["near", "far", "up", "down"], "answer": "D"},
]
PROMPT = "Article: It was so.\n\nThe sky is blue\nQuestion: Who sings?\nAnswer: a cat\nThe end is  _  ."


def test_boolq() -> None:
    row = {"question": "is it so", "passage": "It is so.", "answer": True}
    question = ask_boolq(row)
    assert [choice.continuation for choice in question.choices] == [" no", " yes"]
    assert question.solved == "It is so.\nQuestion: is it so?\nAnswer: yes"
    assert ask_boolq({**row, "answer": None, "label": 0}).right == 0


@pytest.mark.parametrize("form", ["list", "python", "race"])
def test_race_asks_the_last_question_behind_the_others(form: str) -> None:
    row: dict[str, Any] = {"article": "It was so.", "problems": PROBLEMS}
    if form == "python":
        row["problems"] = repr(PROBLEMS)
    if form == "race":
        row = {"article": "It was so."} | {f"{name}s": [p[name] for p in PROBLEMS] for name in ("question", "answer")}
        row["options"] = [problem["options"] for problem in PROBLEMS]
    question = ask_race(row)
    assert {choice.prompt for choice in question.choices} == {PROMPT}
    assert [choice.continuation for choice in question.choices] == [" near", " far", " up", " down"]
    assert question.right == 3


def test_a_single_question_of_race_stands_alone() -> None:
    question = ask_race({"article": "It was so.", **PROBLEMS[1]})
    assert question.solved == "Article: It was so.\n\nWho sings? a cat"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problems": "[__import__('os').system('echo')]"}, "not a list of questions"),
        ({"problems": [{"question": "?", "options": ["a"], "answer": "A"}]}, "options has 1 texts, not 4"),
        ({"problems": [{**PROBLEMS[0], "answer": "E"}]}, "answer is 'E'"),
        ({"questions": ["?"], "options": [], "answers": ["A"]}, "1 questions, 0 lists of options"),
        ({"questions": 5, "options": [], "answers": ["A"]}, "questions is 5, not a list"),
        ({"questions": ["?"], "options": 5, "answers": ["A"]}, "options is 5, not a list"),
    ],
)
def test_rows_that_are_none(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ask_race({"article": "It was so.", **change})
