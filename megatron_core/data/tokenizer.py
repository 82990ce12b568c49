# SPDX-License-Identifier: Apache-2.0
"""What the program asks of a tokenizer, whichever family it is of.

Documents are data: text that looks like a special token, such as the characters of an end-of-text marker in an article
about language models, is encoded as ordinary text. Special ids are only ever added by id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class FimIds:
    """Ids that mark the parts of a document rearranged for fill-in-the-middle."""

    prefix: int
    middle: int
    suffix: int


class Tokenizer(Protocol):
    """Text <-> ids in [0, vocab_size). Ids are int64 arrays."""

    @property
    def vocab_size(self) -> int:
        """One above the largest id."""
        ...

    @property
    def eod(self) -> int | None:
        """End of document, if the vocabulary has one."""
        ...

    @property
    def pad(self) -> int | None:
        """Padding, if the vocabulary has one."""
        ...

    @property
    def fim(self) -> FimIds | None:
        """Marks for fill-in-the-middle, if the vocabulary has them."""
        ...

    @property
    def encoder(self) -> str:
        """What encodes batches, for the log."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """Ids of one text, nothing added."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, equal to encode() and faster."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids."""
        ...
