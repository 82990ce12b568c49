# SPDX-License-Identifier: Apache-2.0
"""`--tokenizer-type ByteTokenizer`: the bytes of UTF-8, and 256 for the end of a document. Needs no files."""

from collections.abc import Sequence

import numpy as np

from megatron_core.data.tokenizer import FimIds


class ByteTokenizer:
    """Ids 0..255 are bytes."""

    vocab_size = 257
    eod: int | None = 256
    pad: int | None = None
    fim: FimIds | None = None
    encoder = "bytes"

    def encode(self, text: str) -> np.ndarray:
        """Bytes of the text, [n] int64."""
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """encode() of each."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of the bytes; the end of a document shows as nothing, broken UTF-8 as U+FFFD."""
        array = np.asarray(ids)
        return array[array < 256].astype(np.uint8).tobytes().decode(errors="replace")
