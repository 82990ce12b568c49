# SPDX-License-Identifier: Apache-2.0
import math

import pytest
import torch

from megatron_core.evaluation.perplexity import Document, Perplexity, perplexity, slide, text_document
from megatron_core.inference.logits import logits
from megatron_core.inference.model import InferenceModel
from megatron_core.parallel.context import ParallelContext
from tests.inference.saved_model import GPT2, in_place
from tests.rank_pool import ranks
from tests.small_model import small

TOKENS = torch.randint(37, (40,), generator=torch.Generator().manual_seed(5)).tolist()
END = 36


def by_hand(context: int, stride: int) -> float:
    """A loop over tokens: each from the tokens that its window shows before it."""
    model, whole, total = in_place(GPT2), [END, *TOKENS], 0.0
    for place in range(1, len(whole)):
        # The window that scores it ends at the first of context, context + stride, ... that it lies before.
        end = context + 1 if place <= context else place + (context - place) % stride + 1
        start = max(min(end, len(whole)) - context - 1, 0)
        found = logits(model, torch.tensor([whole[start:place]])).log_softmax(-1)
        total += float(found[0, -1, whole[place]])
    return total


def measured(model: InferenceModel, documents: list[Document], end: int, stride: int) -> Perplexity:
    """With the 16 tokens that the models read."""
    return perplexity(model, documents, slide(documents, [end], context=16, stride=stride))


@pytest.mark.parametrize("stride", [16, 8, 1])
def test_a_model_that_knows_nothing_finds_all_64_tokens_alike(stride: int) -> None:
    """EVL-04: the perplexity is the number of classes, whatever the stride."""
    model = in_place(small(vocab_size=64))
    for parameter in model.chunks[0].parameters():
        parameter.detach().zero_()
    tokens = torch.randint(64, (200,), generator=torch.Generator().manual_seed(7)).tolist()
    for documents in ([tokens], [tokens[:1], tokens[1:18], tokens[18:]]):
        found = measured(model, [Document(each, 800, 50) for each in documents], 63, stride)
        assert found.tokens == 200
        assert found.per_token == pytest.approx(64, rel=1e-12)
    assert found.bits_per_byte == pytest.approx(200 * 6 / 2400)
    assert found.per_word == pytest.approx(64 ** (200 / 150))


@pytest.mark.parametrize("stride", [16, 5, 1])
def test_it_is_a_loop_over_tokens(stride: int) -> None:
    found = measured(in_place(GPT2), [Document(TOKENS, 1, 1)], END, stride)
    assert found.log_probability == pytest.approx(by_hand(16, stride), rel=1e-10)


@ranks({"tp": 2}, {"pp": 2}, {"dp": 2})
def test_the_same_at_every_layout(ctx: ParallelContext) -> None:
    documents = [Document(TOKENS[:26], 26, 9), Document(TOKENS[26:], 14, 5)]
    found, alone = (measured(model, documents, END, 4) for model in (in_place(GPT2, ctx), in_place(GPT2)))
    assert found.log_probability == pytest.approx(alone.log_probability, rel=1e-10)
    assert (found.tokens, found.bytes, found.words, found.documents) == (40, 40, 14, 2)


def test_bytes_and_words_of_a_text() -> None:
    assert text_document("Größe ist\n alles", [1]) == Document([1], 18, 3)


def test_what_no_double_holds() -> None:
    found = Perplexity(log_probability=-2000.0, documents=1, tokens=2, bytes=1, words=1)
    assert found.per_token == math.inf and found.per_byte == math.inf
