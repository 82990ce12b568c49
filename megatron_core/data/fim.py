# SPDX-License-Identifier: Apache-2.0
"""Fill-in-the-middle (Bavarian et al. 2022, arXiv:2207.14255): documents rearranged so that a model learns to infill.

A piece of a document, from one end-of-document id to the next, is cut at two random characters and becomes
    prefix-suffix-middle    <prefix> P <suffix> S <middle> M
    suffix-prefix-middle    <prefix> <suffix> S <middle> P M
Cuts are between characters, not tokens, so that the model also learns to go on from the middle of a token. What is cut
is keyed by (seed, sample number, piece): the same at every layout. The sample keeps its length.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from megatron_core.data.keyed_hash import keyed_hash
from megatron_core.data.sample import Sample, TrainingData
from megatron_core.data.tokenizer import Tokenizer
from megatron_core.errors import DataError

_BROKEN = "\ufffd"


@dataclass(frozen=True)
class FimSamples:
    """Samples of `data`, each piece rearranged with probability `rate`; of those, `spm_rate` suffix first."""

    data: TrainingData
    tokenizer: Tokenizer
    rate: float
    spm_rate: float
    seed: int

    def __post_init__(self) -> None:
        if self.tokenizer.fim is None or self.tokenizer.eod is None:
            raise DataError(
                "--fim-rate: the tokenizer has no tokens for it (<fim_prefix>, <fim_middle>, <fim_suffix>, end of "
                "document); take a tokenizer that has, such as those of code models"
            )

    def sample(self, number: int) -> Sample:
        """Sample of that number. A rearranged one that has become too long is cut, one too short is padded."""
        sample = self.data.sample(number)
        length = len(sample.tokens)
        parts = [
            self._rearranged(piece, (self.seed, number, order))
            for order, piece in enumerate(self._pieces(sample.tokens))
        ]
        tokens = np.concatenate(parts)[:length]
        targets = min(sample.num_targets, len(tokens) - 1)
        return replace(sample, tokens=np.pad(tokens, (0, length - len(tokens))), num_targets=targets)

    def source(self, number: int) -> str:
        """Where the sample comes from."""
        return self.data.source(number)

    def _pieces(self, tokens: np.ndarray) -> Iterator[np.ndarray]:
        """Documents or parts of them, and the end-of-document ids between them."""
        start = 0
        for end in np.flatnonzero(tokens == self.tokenizer.eod):
            yield tokens[start:end]
            yield tokens[end : end + 1]
            start = end + 1
        yield tokens[start:]

    def _rearranged(self, piece: np.ndarray, key: tuple[int, int, int]) -> np.ndarray:
        if len(piece) == 0 or piece[0] == self.tokenizer.eod or _uniform("chosen", *key) >= self.rate:
            return piece
        text = self.tokenizer.decode(piece)
        if _BROKEN in text:  # the sample starts or ends within a character, which encoding again would lose
            return piece
        first, second = sorted(keyed_hash("cut", i, *key) % (len(text) + 1) for i in range(2))
        prefix, middle, suffix = self.tokenizer.encode_batch([text[:first], text[first:second], text[second:]])
        assert self.tokenizer.fim is not None, "checked at construction"
        ids = self.tokenizer.fim
        if _uniform("order", *key) < self.spm_rate:
            return np.concatenate([[ids.prefix, ids.suffix], suffix, [ids.middle], prefix, middle])
        return np.concatenate([[ids.prefix], prefix, [ids.suffix], suffix, [ids.middle], middle])


def _uniform(*key: int | str) -> float:
    return keyed_hash("fim", *key) / 2**64
