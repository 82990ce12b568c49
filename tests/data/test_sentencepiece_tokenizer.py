# SPDX-License-Identifier: Apache-2.0
"""sentencepiece models, with and without the faster encoder."""

from pathlib import Path

import numpy as np
import pytest

from megatron_core.data.fast_encoder import PROBES
from megatron_core.data.sentencepiece_tokenizer import SentencePieceTokenizer
from megatron_core.errors import DataError
from tests.data.tokenizer_files import sentencepiece_model


@pytest.mark.parametrize(("kind", "encoder"), [("bpe", "gigatoken"), ("unigram", "sentencepiece")])
def test_batches_equal_single_texts_and_special_text_stays_text(tmp_path: Path, kind: str, encoder: str) -> None:
    tokenizer = SentencePieceTokenizer(str(sentencepiece_model(tmp_path / "m.model", kind)))
    texts = [*PROBES, "a </s> b <s> c <unk>", "the fox"]
    assert (tokenizer.eod, tokenizer.pad, tokenizer.encoder) == (2, None, encoder)
    for ids, text in zip(tokenizer.encode_batch(texts), texts):
        assert np.array_equal(ids, tokenizer.encode(text))
        assert 2 not in ids
    assert tokenizer.decode(tokenizer.encode("a </s> b")) == "a </s> b"


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        SentencePieceTokenizer(str(tmp_path / "x.model"))
    (tmp_path / "x.model").write_text("no model")
    with pytest.raises(DataError, match="not a sentencepiece model"):
        SentencePieceTokenizer(str(tmp_path / "x.model"))
