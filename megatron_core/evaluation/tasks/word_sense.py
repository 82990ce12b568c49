# SPDX-License-Identifier: Apache-2.0
"""Word sense disambiguation: WiC (Pilehvar and Camacho-Collados, 2019)."""

from megatron_core.evaluation.fields import label, numbered, text
from megatron_core.evaluation.question import Question, Row, Task, multiple_choice

_LABELS = numbered(2) | {"F": 0, "T": 1}


def ask_wic(row: Row) -> Question:
    """Whether a word means the same in two sentences; it is asked for in the form that the first sentence has."""
    first, second = text(row, "sentence1"), text(row, "sentence2")
    start, end = row.get("start1"), row.get("end1")
    known = isinstance(start, int) and isinstance(end, int)
    word = first[start:end] if known else text(row, "word")
    prompt = (
        f"Sentence 1: {first}\nSentence 2: {second}\n"
        f"Question: Is the word '{word}' used in the same way in the two sentences above?\nAnswer:"
    )
    return multiple_choice(prompt, ("no", "yes"), label(row, _LABELS, "label"))


WIC = Task(
    name="wic",
    area="word sense disambiguation",
    ask=ask_wic,
    files=("wic/dev.jsonl", "wic/val.jsonl", "wic/validation.jsonl"),
    training_files=("wic/train.jsonl",),
)
