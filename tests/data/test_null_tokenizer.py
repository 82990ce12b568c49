# SPDX-License-Identifier: Apache-2.0
"""Numbers as they are."""

import pytest

from megatron_core.data.null_tokenizer import NullTokenizer
from megatron_core.errors import DataError


def test_numbers_and_the_end_of_document() -> None:
    tokenizer = NullTokenizer(131072)
    assert (tokenizer.eod, tokenizer.vocab_size) == (131072, 131073)
    assert tokenizer.encode(" 5 0\n131071 ").tolist() == [5, 0, 131071]
    assert tokenizer.decode([5, 0, 131071]) == "5 0 131071"
    assert [row.tolist() for row in tokenizer.encode_batch(["1 2", ""])] == [[1, 2], []]


@pytest.mark.parametrize("text", ["1 x", "-1", "131073", "1.5", "²"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="is not a number from 0 to 131072"):
        NullTokenizer(131072).encode(text)
