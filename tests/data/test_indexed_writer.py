# SPDX-License-Identifier: Apache-2.0
"""Files written are the golden bytes, survive merging, and are either whole or not there."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.indexed_writer import IndexedWriter, merge
from megatron_core.errors import DataError

DOCUMENTS = [[1, 2, 3, 0], [4, 5, 0], [6, 7, 8, 9, 10, 0]]
GOLDEN_IDX = (
    "4d4d494449445800000100000000000000080300000000000000040000000000000004000000030000000600000000000000000000000800000000"
    "0000000e000000000000000000000000000000010000000000000002000000000000000300000000000000"
)
GOLDEN_BIN = "010002000300000004000500000006000700080009000a000000"


def write(prefix: Path, documents: list[list[int]]) -> Path:
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for document in documents:
            writer.add_document(np.array(document))
    return prefix


def test_golden_bytes_are_written(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", DOCUMENTS)
    assert prefix.with_suffix(".idx").read_bytes().hex() == GOLDEN_IDX
    assert prefix.with_suffix(".bin").read_bytes().hex() == GOLDEN_BIN
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_many_at_once_equals_one_by_one(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "b", np.dtype(np.uint16)) as writer:
        writer.add_documents(np.concatenate(DOCUMENTS[:2]), np.array([4, 3]))
        writer.add_documents(np.array(DOCUMENTS[2]), np.array([6]))
    assert (tmp_path / "b.idx").read_bytes().hex() == GOLDEN_IDX
    assert (tmp_path / "b.bin").read_bytes().hex() == GOLDEN_BIN


def test_lengths_count_the_end_of_document_and_merging_keeps_documents(tmp_path: Path) -> None:
    prefix = write(tmp_path / "a", [[1] * 5 + [0], [2, 0], [3] * 7 + [0]])
    file = IndexedFile(prefix)
    assert file.lengths.tolist() == [6, 2, 8]
    assert prefix.with_suffix(".bin").stat().st_size == 32
    assert merge([prefix, prefix], tmp_path / "twice") == (6, 32)
    twice = IndexedFile(tmp_path / "twice")
    assert twice.num_documents == 6
    assert twice.document_indices.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [twice.read(i).tolist() for i in range(6)] == [file.read(i % 3).tolist() for i in range(6)]


def test_documents_of_several_or_no_sequences(tmp_path: Path) -> None:
    with IndexedWriter(tmp_path / "c", np.dtype(np.int32)) as writer:
        writer.add_document(np.array([1, 2, 3]), lengths=[2, 1])
        writer.add_document(np.array([]), lengths=[])
        writer.add_document(np.array([4]))
    file = IndexedFile(tmp_path / "c")
    assert file.document_indices.tolist() == [0, 2, 2, 3]
    assert file.read(1).tolist() == [3]


def test_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), IndexedWriter(tmp_path / "d", np.dtype(np.uint16)) as writer:
        writer.add_document(np.arange(10))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_other_token_types_do_not_merge(tmp_path: Path) -> None:
    write(tmp_path / "a", DOCUMENTS)
    with IndexedWriter(tmp_path / "wide", np.dtype(np.int32)) as writer:
        writer.add_document(np.arange(3))
    with pytest.raises(DataError, match="uint16"):
        merge([tmp_path / "wide", tmp_path / "a"], tmp_path / "both")
    assert not (tmp_path / "both.bin").exists()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(0, 65535), max_size=9), min_size=1, max_size=12))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]]) -> None:
    prefix = write(tmp_path_factory.mktemp("round") / "x", documents)
    file = IndexedFile(prefix)
    assert [file.read(i).tolist() for i in range(len(documents))] == documents
    assert file.read_tokens(0, file.num_tokens).tolist() == [token for d in documents for token in d]
