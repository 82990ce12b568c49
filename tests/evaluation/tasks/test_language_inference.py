# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.evaluation.tasks.language_inference import ask_anli, ask_hans


@pytest.mark.parametrize(("label", "word"), [(0, "True"), ("n", "Neither"), (2, "False"), ("contradiction", "False")])
def test_anli(label: int | str, word: str) -> None:
    question = ask_anli({"context": "It rains.", "hypothesis": "It is wet.", "label": label})
    assert [choice.answer for choice in question.choices] == ["True", "Neither", "False"]
    assert question.solved == f"It rains.\nQuestion: It is wet. True, False, or Neither?\nAnswer: {word}"


def test_hans_by_the_names_of_either_copy() -> None:
    ours = ask_hans({"premise": "A saw B .", "hypothesis": "B saw A .", "label": "non-entailment"})
    theirs = ask_hans({"sentence1": "A saw B .", "sentence2": "B saw A .", "gold_label": "non-entailment"})
    assert ours == theirs
    assert ours.solved == "A saw B .\nQuestion: B saw A . True or False?\nAnswer: False"
