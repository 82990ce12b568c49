# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.errors import DataError
from megatron_core.evaluation.tails import Tail
from megatron_core.evaluation.text_encoder import TextEncoder

EOD = 256


class NoEnd(ByteTokenizer):
    """Bytes without an end of document."""

    eod = None


class Joins(ByteTokenizer):
    """Writes "b c" as one token, so that a continuation changes the last token of its prompt, or vanishes."""

    def encode_batch(self, texts):
        return [self.encode(text.replace("b c", "B")) for text in texts]


def tail(prompt: str, continuation: str, *, bos: int | None = None, context: int = 100) -> Tail:
    ((found,),) = TextEncoder(ByteTokenizer(), context, bos=bos).pairs([(prompt, continuation)])
    return found


def test_the_continuation_is_scored_behind_its_prompt() -> None:
    assert tail("ab", " cd") == Tail([*b"ab cd"], 3)
    assert tail("ab", " cd", bos=1) == Tail([1, *b"ab cd"], 3)


def test_space_at_the_end_of_a_prompt_is_the_continuation_s() -> None:
    assert tail("ab \n", "cd") == Tail([*b"ab \ncd"], 4)


def test_what_does_not_fit_is_left_out_from_the_left() -> None:
    assert tail("abcdef", "gh", context=3) == Tail([*b"efgh"], 2)
    assert tail("abcdef", "gh", bos=1, context=2) == Tail([*b"fgh"], 2)


def test_a_continuation_that_does_not_fit_is_scored_in_windows() -> None:
    (found,) = TextEncoder(ByteTokenizer(), 4).pairs([("ab", "cdefghij")])
    assert found == [Tail([*b"abcde"], 3), Tail([*b"cdefg"], 2), Tail([*b"efghi"], 2), Tail([*b"fghij"], 1)]


def test_without_a_prompt_the_end_of_a_document_stands_before() -> None:
    assert tail("", "cd") == Tail([EOD, *b"cd"], 2)
    assert tail("", "cd", bos=1) == Tail([1, *b"cd"], 2)
    encoder = TextEncoder(NoEnd(), 100)
    assert encoder.prefix == [] and encoder.pairs([("", "cd")]) == [[Tail([*b"cd"], 1)]]
    with pytest.raises(DataError, match="'c' has no tokens of its own"):
        encoder.pairs([("", "c")])


def test_tokens_are_counted_in_the_whole() -> None:
    encoder = TextEncoder(Joins(), 100)
    assert encoder.pairs([("ab", " cde")]) == [[Tail([*b"aBde"], 2)]]
    with pytest.raises(DataError, match="' c' has no tokens of its own behind 'ab': it cannot be scored"):
        encoder.pairs([("ab", " c")])


def test_prompts_to_be_continued() -> None:
    assert TextEncoder(ByteTokenizer(), 4).prompts(["ab ", ""]) == [[*b"ab "], [EOD]]
    assert TextEncoder(NoEnd(), 4, bos=1).prompts(["ab", ""]) == [[1, *b"ab"], [1]]
    with pytest.raises(DataError, match="an empty prompt cannot be continued"):
        TextEncoder(NoEnd(), 4).prompts([""])


def test_a_first_id_outside_the_vocabulary() -> None:
    with pytest.raises(DataError, match="cannot begin with id 257: the tokenizer has 257 ids"):
        TextEncoder(ByteTokenizer(), 100, bos=257)
