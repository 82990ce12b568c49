# SPDX-License-Identifier: Apache-2.0
"""`--tokenizer-type NullTokenizer --vocab-size V`: documents are ids already, written as numbers between spaces."""

from collections.abc import Sequence

import numpy as np

from megatron_core.data.tokenizer import FimIds
from megatron_core.errors import DataError


class NullTokenizer:
    """Ids 0..V−1 stand for themselves; the end of a document is V."""

    pad: int | None = None
    fim: FimIds | None = None
    encoder = "numbers"

    def __init__(self, vocab_size: int) -> None:
        self.eod: int | None = vocab_size
        self.vocab_size = vocab_size + 1

    def encode(self, text: str) -> np.ndarray:
        """The numbers, [n] int64. Raises DataError for other words and for numbers outside the vocabulary."""
        words = text.split()
        wrong = [word for word in words if not (word.isascii() and word.isdigit() and int(word) < self.vocab_size)]
        if wrong:
            raise DataError(f"NullTokenizer: {wrong[0][:40]!r} is not a number from 0 to {self.vocab_size - 1}")
        return np.array(words, dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """encode() of each."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The numbers with spaces between."""
        return " ".join(str(int(i)) for i in ids)
