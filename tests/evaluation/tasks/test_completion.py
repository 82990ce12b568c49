# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import DataError
from megatron_core.evaluation.question import Choice
from megatron_core.evaluation.tasks.completion import ask_hellaswag, ask_lambada


def test_lambada_asks_for_the_last_word() -> None:
    question = ask_lambada({"text": "He said\nhe would come  home."})
    assert question.choices == (Choice("He said\nhe would come ", " home.", "home."),)
    assert question.solved == "He said\nhe would come   home."
    with pytest.raises(DataError, match="single word"):
        ask_lambada({"text": "Alone"})


def test_hellaswag_is_cleaned_of_wikihow() -> None:
    question = ask_hellaswag(
        {
            "activity_label": "Baking",
            "ctx_a": "[header] How to bake [title] Take flour.",
            "ctx_b": "she THEN",
            "endings": ["eats.", " [step] sleeps  well [substeps] now. "],
            "label": "1",
        }
    )
    prompt = "Baking: How to bake. Take flour. She then"
    assert question.choices[0] == Choice(prompt, " eats.", "eats.")
    assert question.choices[1].answer == " sleeps well now."
    assert (question.right, question.solved) == (1, f"{prompt}  sleeps well now.")
