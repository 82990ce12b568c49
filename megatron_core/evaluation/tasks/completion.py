# SPDX-License-Identifier: Apache-2.0
"""Completion prediction: LAMBADA (Paperno et al., 2016) and HellaSwag (Zellers et al., 2019)."""

import re

from megatron_core.errors import DataError
from megatron_core.evaluation.fields import label, numbered, text, texts
from megatron_core.evaluation.question import Choice, Question, Row, Task, multiple_choice


def ask_lambada(row: Row) -> Question:
    """The last word of a passage, however many tokens it has; right where each of them is the most probable."""
    context, space, word = text(row, "text").rpartition(" ")
    if not space:
        raise DataError("text is a single word, with nothing to foretell it from")
    # The space before the word stands twice in an example, as in lm_eval.
    return Question((Choice(context, f" {word}", word),), 0, f"{context}  {word}")


def ask_hellaswag(row: Row) -> Question:
    """How a scene goes on: one of four endings."""
    context = f"{text(row, 'ctx_a')} {text(row, 'ctx_b').capitalize()}"
    endings = texts(row, "endings")
    prompt = _without_markup(f"{text(row, 'activity_label')}: {context}")
    return multiple_choice(
        prompt, tuple(map(_without_markup, endings)), label(row, numbered(len(endings)), "label", "gold")
    )


def _without_markup(wikihow: str) -> str:
    """Bracketed words and double spaces are left over from WikiHow's pages."""
    return re.sub(r"\[.*?\]", "", wikihow.strip().replace(" [title]", ". ")).replace("  ", " ")


LAMBADA = Task(
    name="lambada",
    area="completion prediction",
    ask=ask_lambada,
    metrics=("perplexity", "acc"),
    files=("lambada/lambada_openai_test.jsonl", "lambada/test.jsonl"),
)
HELLASWAG = Task(
    name="hellaswag",
    area="completion prediction",
    ask=ask_hellaswag,
    metrics=("acc", "acc_norm"),
    files=("hellaswag/validation.jsonl", "hellaswag/hellaswag_val.jsonl"),
    training_files=("hellaswag/train.jsonl", "hellaswag/hellaswag_train.jsonl"),
)
