# SPDX-License-Identifier: Apache-2.0
import gzip
from pathlib import Path

import numpy as np
import pytest

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.errors import DataError
from megatron_core.evaluation.documents import read_documents
from megatron_core.evaluation.perplexity import Document

BYTES = ByteTokenizer()


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Ja,\n\nschön hier.\n")
    expected = [Document([*"Ja,\n\nschön hier.\n".encode()], 18, 4)]
    assert read_documents(tmp_path / "a.txt", BYTES) == expected
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    assert read_documents(tmp_path / "a.txt.gz", BYTES) == expected
    (tmp_path / "wiki.test.tokens").write_bytes((tmp_path / "a.txt").read_bytes())
    assert read_documents(tmp_path / "wiki.test.tokens", BYTES) == expected


def test_a_row_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n{"text": "c"}\n{"txt": "d"}\n')
    assert read_documents(tmp_path / "a.jsonl", BYTES, 2) == [Document([*b"a b"], 3, 2), Document([*b"c"], 1, 1)]
    with pytest.raises(DataError, match=r"a.jsonl:3: no field text; there are txt"):
        read_documents(tmp_path / "a.jsonl", BYTES)


def test_documents_of_an_indexed_file_have_the_text_of_their_tokens(tmp_path: Path) -> None:
    with IndexedWriter(str(tmp_path / "a"), np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([*b"a b", 256]))
        writer.add_document(np.array([*"ö".encode(), 256]))
    expected = [Document([*b"a b", 256], 3, 2), Document([*"ö".encode(), 256], 2, 1)]
    assert read_documents(tmp_path / "a", BYTES) == expected
    assert read_documents(tmp_path / "a", BYTES, 1) == expected[:1]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"b: no such file, and no .*b.idx"):
        read_documents(tmp_path / "b", BYTES)
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match="not UTF-8"):
        read_documents(tmp_path / "b.txt", BYTES)
    with IndexedWriter(str(tmp_path / "c"), np.dtype(np.uint16)) as writer:
        writer.add_document(np.array([257]))
    with pytest.raises(DataError, match="holds the id 257, but the tokenizer has 257 ids"):
        read_documents(tmp_path / "c", BYTES)
