# SPDX-License-Identifier: Apache-2.0
"""`--tokenizer-type SentencePieceTokenizer` (or Llama2Tokenizer): a sentencepiece .model file."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from sentencepiece import SentencePieceProcessor

from megatron_core.data.fast_encoder import EncodeBatch, fast_encoder
from megatron_core.data.tokenizer import FimIds
from megatron_core.errors import DataError


class SentencePieceTokenizer:
    """Ids of the model; its end-of-sentence piece ends documents. Raises DataError when the file cannot be used."""

    fim: FimIds | None = None

    def __init__(self, path: str) -> None:
        if not Path(path).is_file():
            raise DataError(f"--tokenizer-model {path}: no such file; give a sentencepiece .model")
        try:
            self._model = SentencePieceProcessor(model_file=path)
        except (RuntimeError, OSError) as error:
            raise DataError(f"--tokenizer-model {path}: not a sentencepiece model: {error}") from error
        self._path = Path(path)
        self.vocab_size: int = self._model.vocab_size()
        self.eod = _present(self._model.eos_id())
        self.pad = _present(self._model.pad_id())

    @property
    def encoder(self) -> str:
        """gigatoken where it gives the same ids, else sentencepiece."""
        return "sentencepiece" if self._fast is None else "gigatoken"

    def encode(self, text: str) -> np.ndarray:
        """Ids of one text, [n] int64."""
        return np.array(self._model.encode(text), dtype=np.int64)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text."""
        return self._reference(texts) if self._fast is None else self._fast(texts)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of ids; control pieces show as nothing."""
        return self._model.decode([int(i) for i in ids])

    @cached_property
    def _fast(self) -> EncodeBatch | None:
        """Made at the first use, since training never encodes."""
        model, pieces = self._model, range(self.vocab_size)
        control = [model.id_to_piece(i) for i in pieces if model.is_control(i) or model.is_unknown(i)]
        text = " ".join(model.id_to_piece(i).replace("▁", " ") for i in pieces if not model.is_byte(i))
        for piece in control:
            text = text.replace(piece, "")
        return fast_encoder(self._path.read_bytes(), self._reference, probes=[text], avoid=control)

    def _reference(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array(ids, dtype=np.int64) for ids in self._model.encode(list(texts))]


def _present(piece: int) -> int | None:
    return piece if piece >= 0 else None
