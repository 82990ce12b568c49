# SPDX-License-Identifier: Apache-2.0
"""Perplexity of documents that may be longer than the model: a window slides over each, and each token counts once.

A window of c tokens moves by a stride of t: its last t tokens are scored, the others are only their context. A stride
of 1 gives each token all the context that the model can have, one of c only what its window happens to hold. With
context 4 and stride 2 (x scored, . context, | the start of the document):

    | x x x x                 the first window scores all that it holds
        . . x x
            . . x x

The total is divided by tokens, by bytes or by words, as the reader wants to compare: only the latter two are the same
question to models with other tokenizers.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatron_core.evaluation.likelihood import BATCH_TOKENS, Report, Tail, likelihoods
from megatron_core.inference.model import InferenceModel


@dataclass(frozen=True)
class Document:
    """Tokens with what they stand for."""

    tokens: Sequence[int]
    bytes: int
    words: int


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """The log-probability of documents, and what it may be divided by."""

    log_probability: float
    """Natural logarithm, summed over all scored tokens."""
    documents: int
    tokens: int
    """How many were scored."""
    bytes: int
    words: int

    @property
    def per_token(self) -> float:
        """exp(-log_probability / tokens)."""
        return _exp(-self.log_probability / self.tokens)

    @property
    def per_byte(self) -> float:
        """exp(-log_probability / bytes)."""
        return _exp(-self.log_probability / self.bytes)

    @property
    def per_word(self) -> float:
        """exp(-log_probability / words)."""
        return _exp(-self.log_probability / self.words)

    @property
    def bits_per_byte(self) -> float:
        """The base-2 logarithm of per_byte."""
        return -self.log_probability / self.bytes / math.log(2)


def windows(tokens: Sequence[int], prefix: Sequence[int], context: int, stride: int) -> Iterator[Tail]:
    """Windows that score each token once, the first one too where a prefix stands before it.

    context: the most tokens that the model reads at once; stride: in [1, context].
    """
    assert 1 <= stride <= context, f"stride {stride} with context {context}"
    whole = [*prefix, *tokens]
    done = 1  # the first of all has nothing before it
    while done < len(whole):
        end = min(len(whole), context + 1 if done == 1 else done + stride)
        yield Tail(whole[max(end - context - 1, 0) : end], end - done)
        done = end


def text_document(text: str, tokens: Sequence[int]) -> Document:
    """A text with its tokens; words as lm_eval counts them."""
    return Document(tokens, len(text.encode()), len(re.split(r"\s+", text)))


def perplexity(
    model: InferenceModel,
    documents: Sequence[Document],
    prefix: Sequence[int],
    *,
    context: int,
    stride: int,
    report: Report | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> Perplexity:
    """Score documents, each behind the prefix and apart from the others. All ranks must call, and get the same."""
    tails = [tail for document in documents for tail in windows(document.tokens, prefix, context, stride)]
    found = likelihoods(model, tails, report, batch_tokens=batch_tokens)
    return Perplexity(
        log_probability=math.fsum(each.log_probability for each in found),
        documents=len(documents),
        tokens=sum(tail.scored for tail in tails),
        bytes=sum(document.bytes for document in documents),
        words=sum(document.words for document in documents),
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 709 else math.inf
