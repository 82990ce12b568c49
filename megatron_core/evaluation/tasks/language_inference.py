# SPDX-License-Identifier: Apache-2.0
"""Natural language inference: ANLI (Nie et al., 2020) in its three rounds and HANS (McCoy et al., 2019)."""

from megatron_core.evaluation.fields import label, numbered, text
from megatron_core.evaluation.question import Question, Row, Task, multiple_choice

_ANLI_LABELS = numbered(3) | {"e": 0, "n": 1, "c": 2, "entailment": 0, "neutral": 1, "contradiction": 2}
_HANS_LABELS = numbered(2) | {"entailment": 0, "non-entailment": 1}


def ask_anli(row: Row) -> Question:
    """Whether a premise entails a hypothesis, contradicts it or neither."""
    premise, hypothesis = text(row, "premise", "context"), text(row, "hypothesis")
    prompt = f"{premise}\nQuestion: {hypothesis} True, False, or Neither?\nAnswer:"
    return multiple_choice(prompt, ("True", "Neither", "False"), label(row, _ANLI_LABELS, "label"))


def ask_hans(row: Row) -> Question:
    """Whether a premise entails a hypothesis that shares its words. lm_eval has no HANS: this is its ANLI's manner."""
    premise, hypothesis = text(row, "premise", "sentence1"), text(row, "hypothesis", "sentence2")
    prompt = f"{premise}\nQuestion: {hypothesis} True or False?\nAnswer:"
    return multiple_choice(prompt, ("True", "False"), label(row, _HANS_LABELS, "label", "gold_label"))


def _anli(number: int) -> Task:
    return Task(
        name=f"anli_r{number}",
        area="natural language inference",
        ask=ask_anli,
        files=(f"anli/r{number}_test.jsonl", f"anli/r{number}_dev.jsonl", f"anli/R{number}/test.jsonl"),
        training_files=(f"anli/r{number}_train.jsonl", f"anli/R{number}/train.jsonl"),
    )


ANLI = tuple(_anli(number) for number in (1, 2, 3))
HANS = Task(
    name="hans",
    area="natural language inference",
    ask=ask_hans,
    files=("hans/hans_evaluation_set.jsonl", "hans/heuristics_evaluation_set.jsonl"),
    training_files=("hans/heuristics_train_set.jsonl",),
)
