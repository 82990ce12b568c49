# SPDX-License-Identifier: Apache-2.0
from megatron_core.evaluation.tasks.word_sense import ask_wic


def test_the_word_is_asked_for_as_the_first_sentence_has_it() -> None:
    row = {"word": "place", "sentence1": "Many places.", "sentence2": "A place.", "label": "F"}
    assert ask_wic(row).solved == (
        "Sentence 1: Many places.\nSentence 2: A place.\n"
        "Question: Is the word 'place' used in the same way in the two sentences above?\nAnswer: no"
    )
    assert "the word 'places'" in ask_wic({**row, "start1": 5, "end1": 11, "label": True}).solved
