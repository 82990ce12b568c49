# SPDX-License-Identifier: Apache-2.0
"""One chunk: ids, lengths, empty documents, and the reasons given for bad lines."""

import numpy as np
import pytest

from megatron_core.config.data import DataConfig
from megatron_core.data.corpus_encoder import EncodedChunk, EncodeJob, encode_chunk, encoder_of
from megatron_core.data.corpus_files import Chunk
from megatron_core.errors import DataError


def job(kind: str = "ByteTokenizer", keys: tuple[str, ...] = ("text",), append_eod: bool = True) -> EncodeJob:
    config = DataConfig(tokenizer_type=kind)  # type: ignore[arg-type]
    return EncodeJob(
        tokenizer=config, vocab_size=9 if kind == "NullTokenizer" else None, keys=keys, append_eod=append_eod
    )


def encode(payload: bytes, kind: str = "jsonl", **of_job: object) -> EncodedChunk:
    chunk = Chunk(path="corpus", kind=kind, first_line=10, payload=payload, bytes_read=5)
    return encode_chunk(job(**of_job), chunk)  # type: ignore[arg-type]


def test_ids_lengths_and_empty_documents() -> None:
    result = encode(b'{"text": "ab"}\n\n{"text": ""}\n{"text": "c"}\n')
    (documents,) = result.documents
    assert documents.ids.tolist() == [97, 98, 256, 99, 256] and documents.ids.dtype == np.uint16
    assert documents.lengths.tolist() == [3, 2]
    assert (documents.empty, result.bad_lines, result.bytes_read) == (1, (), 5)
    (documents,) = encode(b'{"text": "ab"}', append_eod=False).documents
    assert (documents.ids.tolist(), documents.lengths.tolist()) == ([97, 98], [2])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"} {"text": "b"}', "not JSON"),
        (b"3", "a JSON int, not an object"),
        (b'{"text": 3, "id": 1}', "no text under the key 'text'; keys here: text, id"),
        (b'{"text": "\\ud800"}', "not JSON"),
    ],
)
def test_reasons(line: bytes, reason: str) -> None:
    result = encode(b'{"text": "a"}\n' + line + b"\n")
    assert len(result.bad_lines) == 1
    assert result.bad_lines[0].startswith("corpus:11: ") and reason in result.bad_lines[0]
    assert result.documents[0].ids.tolist() == [97, 256]


def test_a_bad_line_counts_for_no_key() -> None:
    first, second = encode(b'{"a": "x", "b": "y"}\n{"a": "x"}\n', keys=("a", "b")).documents
    assert (first.ids.tolist(), second.ids.tolist()) == ([120, 256], [121, 256])


def test_plain_text() -> None:
    (documents,) = encode(b"ab\nc", kind="text").documents
    assert documents.lengths.tolist() == [5]
    assert encode(b" \n", kind="text").documents[0].empty == 1
    (documents,) = encode(b"a\n\n\n\nbc\n \nd", kind="blocks").documents
    assert (documents.lengths.tolist(), documents.empty) == ([2, 3, 2], 0)
    assert encode(b"good\nline\n\nb\xff", kind="blocks").bad_lines[0].startswith("corpus:13: not UTF-8")


def test_numbers_that_are_none() -> None:
    result = encode(b'{"text": "1 x"}\n{"text": "3"}\n', kind="jsonl")
    assert not result.bad_lines
    result = encode_chunk(
        job("NullTokenizer"),
        Chunk(path="n", kind="jsonl", first_line=1, payload=b'{"text": "1 x"}\n{"text": "3"}\n', bytes_read=0),
    )
    assert result.bad_lines[0].startswith("n:1: NullTokenizer: 'x'")
    assert result.documents[0].ids.tolist() == [3, 9]


def test_the_encoder_is_built_once() -> None:
    assert encoder_of(job()) is encoder_of(job())


def test_an_end_of_document_must_exist() -> None:
    with pytest.raises(DataError, match="needs --tokenizer-model"):
        encoder_of(job("HuggingFaceTokenizer"))
