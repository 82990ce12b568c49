# SPDX-License-Identifier: Apache-2.0
"""Commonsense reasoning: PiQA (Bisk et al., 2020) and WinoGrande (Sakaguchi et al., 2020)."""

from megatron_core.errors import DataError
from megatron_core.evaluation.fields import label, numbered, text
from megatron_core.evaluation.question import Choice, Question, Row, Task, multiple_choice


def ask_piqa(row: Row) -> Question:
    """Which of two ways reaches a goal."""
    prompt = f"Question: {text(row, 'goal')}\nAnswer:"
    return multiple_choice(prompt, (text(row, "sol1"), text(row, "sol2")), label(row, numbered(2), "label"))


def ask_winogrande(row: Row) -> Question:
    """Whom a sentence speaks of: what follows the gap, behind the sentence filled with either name."""
    sentence = text(row, "sentence")
    before, gap, rest = sentence.partition("_")
    if not gap:
        raise DataError(f"sentence has no gap (_): {sentence!r:.60}")
    names = (text(row, "option1"), text(row, "option2"))
    right = label(row, numbered(2, first=1), "answer")
    continuation = f" {rest.strip()}"
    choices = tuple(Choice(before + name, continuation, before + name) for name in names)
    return Question(choices, right, choices[right].prompt + continuation)


PIQA = Task(
    name="piqa",
    area="commonsense reasoning",
    ask=ask_piqa,
    metrics=("acc", "acc_norm"),
    files=("piqa/validation.jsonl", "piqa/valid.jsonl"),
    training_files=("piqa/train.jsonl",),
)
WINOGRANDE = Task(
    name="winogrande",
    area="commonsense reasoning",
    ask=ask_winogrande,
    files=("winogrande/winogrande_xl_validation.jsonl", "winogrande/validation.jsonl", "winogrande/dev.jsonl"),
    training_files=("winogrande/train_xl.jsonl", "winogrande/train.jsonl"),
)
