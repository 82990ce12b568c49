# SPDX-License-Identifier: Apache-2.0
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.errors import DataError
from megatron_core.evaluation.few_shot import draw_examples
from megatron_core.evaluation.likelihood import Likelihood
from megatron_core.evaluation.multiple_choice import encode_task, estimate, read_task, score_task
from megatron_core.evaluation.question import Choice, Question
from megatron_core.evaluation.task_rows import TaskFile, read_questions
from megatron_core.evaluation.tasks.table import TASKS
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.inference.logits import logits
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import in_place
from tests.rank_pool import ranks
from tests.small_model import small

BYTES = small(vocab_size=257, seq_length=32, max_position_embeddings=32, init_method_std=0.3)


def rows_of(folder: Path, name: str, *rows: dict) -> TaskFile:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TaskFile(TASKS[name], path)


class Letters(ByteTokenizer):
    """Leaves out spaces, so that a word has as many tokens as letters."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text.replace(" ", "")) for text in texts]


def answered(*log_probabilities: float) -> list[Likelihood]:
    return [Likelihood(each, False) for each in log_probabilities]


def question(right: int, *answers: str) -> Question:
    return Question(tuple(Choice("", answer, answer) for answer in answers), right, "")


def test_the_most_probable_choice_as_a_whole_and_by_length() -> None:
    questions = [question(0, "no", "yes, all"), question(1, "no", "yes, all"), question(1, "a", "b")]
    answers = [answered(-2.0, -4.0), answered(-2.0, -4.0), answered(-1.0, -1.0)]
    acc = estimate("acc", questions, answers)
    assert acc.value == pytest.approx(1 / 3)  # of equals the first counts
    assert acc.standard_error == pytest.approx(math.sqrt(1 / 3 * 2 / 3 * 3 / 2 / 3))
    assert estimate("acc_norm", questions, answers).value == pytest.approx(1 / 3)
    assert math.isnan(estimate("acc", questions[:1], answers[:1]).standard_error)


def test_perplexity_is_of_words_and_greedy_is_right() -> None:
    questions = [question(0, "two tokens"), question(0, "one")]
    answers = [[Likelihood(-3.0, True)], [Likelihood(-1.0, False)]]
    found = estimate("perplexity", questions, answers)
    assert (found.value, found.standard_error) == (pytest.approx(math.exp(2)), pytest.approx(math.exp(2)))
    assert estimate("acc", questions, answers).value == 0.5
    assert estimate("perplexity", questions[:1], [[Likelihood(-1e6, False)]]).value == math.inf


@ranks({"tp": 2}, {"pp": 2}, {"dp": 2})
def test_the_same_at_every_layout(ctx: ParallelContext, tmp_path: Path) -> None:
    lines = [{"text": f"{prompt} {word}"} for prompt, word in (("We saw the", "a"), ("It was all", "ab"), ("x", "abc"))]
    asked = read_task(rows_of(tmp_path / str(ctx.rank), "lambada", *lines))
    encoded = encode_task(asked, TextEncoder(Letters(), 32))
    found, alone = (score_task(model, encoded).metrics for model in (in_place(BYTES, ctx), in_place(BYTES)))
    assert found["perplexity"].value == pytest.approx(alone["perplexity"].value, rel=1e-10)
    expected = 0.0
    for (tail,) in encoded.tails:
        rows = logits(in_place(BYTES), torch.tensor([tail.tokens])).log_softmax(-1)[0]
        places = range(len(tail.tokens) - tail.scored, len(tail.tokens))
        expected += sum(float(rows[place - 1, tail.tokens[place]]) for place in places)
    assert alone["perplexity"].value == pytest.approx(math.exp(-expected / 3), rel=1e-10)


def test_a_word_of_several_tokens_counts_once(tmp_path: Path) -> None:
    """EVL-04: right last words of one, two and three tokens are three right answers, one wrong token makes a wrong one.

    The model finds "a" e^32 times as probable as any other byte, everywhere.
    """
    model = in_place(BYTES)
    (chunk,) = model.chunks
    for parameter in chunk.parameters():
        parameter.detach().zero_()
    assert chunk.head is not None and chunk.embedding is not None
    chunk.head.norm.bias.detach().fill_(1.0)
    chunk.embedding.tokens.weight.detach()[ord("a")] = 1.0
    lines = [{"text": f"What x {word}"} for word in ("a", "aa", "aaa", "b", "aba")]
    asked = read_task(rows_of(tmp_path, "lambada", *lines))
    encoded = encode_task(asked, TextEncoder(Letters(), 32))
    assert [tail.scored for (tail,) in encoded.tails] == [1, 2, 3, 1, 3]
    assert encoded.tokens == sum(len(line["text"].replace(" ", "")) for line in lines)
    found = score_task(model, encoded).metrics
    assert found["acc"].value == 3 / 5
    assert found["perplexity"].value == pytest.approx(math.exp(2 * 32 / 5), rel=1e-9)


def test_examples_and_limit(tmp_path: Path) -> None:
    rows = [{"goal": f"Goal {k}", "sol1": "x", "sol2": "y", "label": k % 2} for k in range(6)]
    file = rows_of(tmp_path, "piqa", *rows)
    found = read_task(file, num_fewshot=2, limit=3)
    questions = read_questions(file.task, file.path)
    assert len(found.pairs) == 6 and {continuation for _, continuation in found.pairs} == {" x", " y"}
    drawn = draw_examples(questions[:3], questions, 2)
    for asked, examples, (prompt, _) in zip(questions, drawn, found.pairs[::2]):
        assert prompt == "\n\n".join([*(example.solved for example in examples), asked.choices[0].prompt])
    with pytest.raises(DataError, match="6 rows to draw 6 examples from"):
        read_task(file, num_fewshot=6)
    training = rows_of(tmp_path / "training", "piqa", *({**row, "sol1": "z", "label": 0} for row in rows))
    separate = read_task(TaskFile(file.task, file.path, training.path), num_fewshot=1)
    assert all(prompt.startswith("Question: Goal ") and " z\n\n" in prompt for prompt, _ in separate.pairs)
