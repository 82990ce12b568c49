# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import DataError
from megatron_core.evaluation.question import Choice
from megatron_core.evaluation.tasks.commonsense import ask_piqa, ask_winogrande


def test_piqa() -> None:
    question = ask_piqa({"goal": "How?", "sol1": "So.", "sol2": "Or so.", "label": 1})
    assert question.choices[1] == Choice("Question: How?\nAnswer:", " Or so.", "Or so.")
    assert (question.right, question.solved) == (1, "Question: How?\nAnswer: Or so.")


def test_winogrande_scores_what_follows_the_gap() -> None:
    row = {"sentence": "Ann met Eve because _  was late.", "option1": "Ann", "option2": "Eve", "answer": "2"}
    question = ask_winogrande(row)
    assert [choice.prompt for choice in question.choices] == [f"Ann met Eve because {who}" for who in ("Ann", "Eve")]
    assert {choice.continuation for choice in question.choices} == {" was late."}
    assert question.solved == "Ann met Eve because Eve was late."
    with pytest.raises(DataError, match="no gap"):
        ask_winogrande({**row, "sentence": "Ann met Eve."})
    with pytest.raises(DataError, match="answer is '', not one of 1, '1', 2, '2'"):
        ask_winogrande({**row, "answer": ""})
