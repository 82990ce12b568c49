# SPDX-License-Identifier: Apache-2.0
"""Perplexity of documents that may be longer than the model: a window slides over each, and each token counts once.

The total is divided by tokens, by bytes or by words, as the reader wants to compare: only the latter two are the same
question to models with other tokenizers.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_core.evaluation.likelihood import BATCH_TOKENS, Report, likelihoods
from megatron_core.evaluation.tails import Tail, windows
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


def text_document(text: str, tokens: Sequence[int]) -> Document:
    """A text with its tokens; words as lm_eval counts them."""
    return Document(tokens, len(text.encode()), len(re.split(r"\s+", text)))


def slide(documents: Sequence[Document], prefix: Sequence[int], *, context: int, stride: int) -> list[Tail]:
    """The windows of all documents, each behind the prefix and apart from the others."""
    return [
        tail
        for document in documents
        for tail in windows([*prefix, *document.tokens], 1, context=context, stride=stride)
    ]


def perplexity(
    model: InferenceModel,
    documents: Sequence[Document],
    tails: Sequence[Tail],
    report: Report | None = None,
    *,
    batch_tokens: int = BATCH_TOKENS,
) -> Perplexity:
    """Score the windows of documents. All ranks must call, and get the same."""
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
