# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import numpy as np

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.inference.streamed_text import StreamedText, text_after


class Words(ByteTokenizer):
    """Ids are words; as in sentencepiece the first one loses the space before it."""

    words = (" a", " bc", "d")

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return "".join(self.words[i] for i in ids).lstrip()


def test_characters_come_whole() -> None:
    stream = StreamedText(ByteTokenizer(), list(b"caf"))
    text = "é \U0001f600!".encode()
    assert [stream.add([byte]) for byte in text] == ["", "é", " ", "", "", "", "\U0001f600", "!"]
    assert stream.add([0xE2, 0x82]) == "" and stream.rest() == "\ufffd"
    assert stream.rest() == ""


def test_a_space_before_the_first_word_stays() -> None:
    stream = StreamedText(Words(), [0])
    assert [stream.add([1]), stream.add([2, 0])] == [" bc", "d a"]
    assert text_after(Words(), [0], [1, 2]) == " bcd"
