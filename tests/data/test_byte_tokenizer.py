# SPDX-License-Identifier: Apache-2.0
"""Bytes and back."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data.byte_tokenizer import ByteTokenizer


@settings(deadline=None)
@given(st.text())
def test_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert np.array_equal(tokenizer.encode_batch([text])[0], ids)


def test_the_end_of_document_has_an_id_of_its_own() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.eod, tokenizer.vocab_size) == (256, 257)
    assert tokenizer.decode([104, 105, 256]) == "hi"
    assert tokenizer.decode([195]) == "\ufffd"
