# SPDX-License-Identifier: Apache-2.0
"""From flags to samples: splits, blends, named sets, curricula, mock data; and start-up that does not grow."""

import logging
import struct
from pathlib import Path

import numpy as np
import pytest

from megatron_core.config.data import DataConfig
from megatron_core.data.build import Datasets, build_datasets
from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.indexed_format import HEADER, MAGIC
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.data.sample import TrainingData, ValidationData
from megatron_core.errors import DataError


def write(prefix: Path, token: int, documents: int = 100, length: int = 10) -> str:
    """All tokens are `token`, so that a sample tells where it comes from."""
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for _ in range(documents):
            writer.add_document(np.full(length, token))
    return str(prefix)


def build(eval_samples: int | None = 8, seq_length: int = 5, **flags: object) -> Datasets:
    data = DataConfig(**flags)  # type: ignore[arg-type]
    return build_datasets(data, seed=1, seq_length=seq_length, tokenizer=ByteTokenizer(), eval_samples=eval_samples)


def origins(data: TrainingData | ValidationData, samples: int) -> list[int]:
    return [int(data.sample(number).tokens[0]) for number in range(samples)]


def test_one_data_set_is_split(tmp_path: Path) -> None:
    prefix = tmp_path / "d"
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for i in range(100):
            writer.add_document(np.full(10, i))
    sets = build(data_path=(str(prefix),), split="80,15,5", eval_samples=None)
    assert sorted(set(origins(sets.train, 159))) == list(range(80))
    assert set(origins(sets.validation["validation"], 29)) == set(range(80, 95))
    assert sets.test is not None and set(origins(sets.test, 9)) == set(range(95, 100))
    assert sets.train.source(0) == str(prefix)


def test_a_blend_over_many_epochs(tmp_path: Path) -> None:
    """Two sets of 20 samples: 0.3/0.7 over 100 samples gives 30/70, although the second has to start again."""
    p, q = write(tmp_path / "p", 1, documents=12), write(tmp_path / "q", 2, documents=12)
    for weights in (("0.3", "0.7"), ("3", "7")):
        train = build(data_path=(weights[0], p, weights[1], q), split="90,10,0").train
        got = origins(train, 100)
        assert (got.count(1), got.count(2)) == (30, 70)
    got = origins(build(data_path=("0.001", p, "0.999", q), split="90,10,0").train, 1000)
    assert (got.count(1), got.count(2)) == (1, 999)


def test_unweighted_sets_share_by_tokens_and_validation_follows_the_blend(tmp_path: Path) -> None:
    p, q = write(tmp_path / "p", 1, documents=100), write(tmp_path / "q", 2, documents=300)
    sets = build(data_path=(p, q), split="90,10,0", eval_samples=8)
    assert origins(sets.train, 400).count(1) == 100
    assert origins(sets.validation["validation"], 8) == [1, 1, 2, 2, 2, 2, 2, 2]
    assert sets.test is None


def test_paths_of_each_part_and_named_sets(tmp_path: Path) -> None:
    p, q, r = (write(tmp_path / name, token) for name, token in (("p", 1), ("q", 2), ("r", 3)))
    sets = build(train_data_path=(p,), valid_data_path=(q,), validation_sets=(f"wiki={r}",))
    assert set(origins(sets.train, 20)) == {1}
    assert list(sets.validation) == ["validation", "wiki"]
    assert {name: set(origins(data, 8)) for name, data in sets.validation.items()} == {"validation": {2}, "wiki": {3}}
    assert sets.test is None
    with pytest.raises(DataError, match="no training data"):
        build(valid_data_path=(q,))


def test_a_curriculum_changes_the_shares(tmp_path: Path) -> None:
    p, q = write(tmp_path / "p", 1), write(tmp_path / "q", 2)
    text = "[{tokens: 200, weights: [0, 1]}]"
    train = build(data_path=("1", p, "1", q), blend_curriculum=text, split="90,10,0").train
    got = origins(train, 60)
    assert got[:40].count(1) == 20
    assert set(got[40:]) == {2}


def test_no_validation_asked_for(tmp_path: Path) -> None:
    p = write(tmp_path / "p", 1, documents=3)
    sets = build(data_path=(p,), eval_samples=0)
    assert (sets.validation, sets.test) == ({}, None)


def test_an_empty_validation_part_is_an_error_at_once(tmp_path: Path) -> None:
    p = write(tmp_path / "p", 1, documents=10)
    with pytest.raises(DataError, match="the valid part is empty"):
        build(data_path=(p,), split="969,30,1")
    with pytest.raises(DataError, match=r"d: 10 tokens to train on"):
        build(data_path=(write(tmp_path / "d", 1, documents=1),), split="1", seq_length=50, eval_samples=0)


def test_an_empty_test_part_or_one_of_several_sets_is_told_by_rank_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="megatron_core")
    p, q = write(tmp_path / "p", 1, documents=10), write(tmp_path / "q", 2, documents=100)
    sets = build(data_path=("1", p, "1", q), split="949,50,1", eval_samples=4)
    assert sets.test is None
    assert set(origins(sets.validation["validation"], 4)) == {1, 2}
    assert f"no test data in {p}, {q}" in caplog.text
    sets = build(data_path=("1", p, "1", q), split="99,1,0", eval_samples=1)
    assert set(origins(sets.validation["validation"], 1)) == {2}
    assert f"no valid data in {p}" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.INFO}, "a warning would come from every rank"


def test_mock_data() -> None:
    sets = build(mock_data=True, eval_samples=6)
    assert sets.train.sample(10**9).tokens.max() < 257
    assert sets.validation["validation"].num_samples == 6
    assert sets.test is not None and sets.test.sample(0).tokens.tolist() != sets.train.sample(0).tokens.tolist()
    assert build(mock_data=True, eval_samples=0).validation == {}


def test_fill_in_the_middle_needs_its_tokens(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--fim-rate"):
        build(data_path=(write(tmp_path / "p", 1),), split="90,10,0", fim_rate=0.5)


def test_start_up_looks_at_the_ends_of_an_index_alone(tmp_path: Path) -> None:
    """Of ten million documents only the first and the last stand in the index, the rest is a hole: it opens all the
    same, knows its tokens and gives samples, so that start-up cannot grow with documents (benchmarks/many_documents.py
    measures it)."""
    documents, prefix = 10_000_000, tmp_path / "hole"
    lengths, pointers = HEADER.size, HEADER.size + 4 * documents
    ends = pointers + 8 * documents
    with open(f"{prefix}.idx", "wb") as index:
        index.write(HEADER.pack(MAGIC, 1, 8, documents, documents + 1))
        for offset, entry in (
            (lengths, struct.pack("<i", 8)),
            (pointers - 4, struct.pack("<i", 8)),
            (ends - 8, struct.pack("<q", 16 * (documents - 1))),
            (ends + 8 * documents, struct.pack("<q", documents)),
        ):
            index.seek(offset)
            index.write(entry)
    with open(f"{prefix}.bin", "wb") as tokens:
        tokens.seek(16 * documents - 2)
        tokens.write(struct.pack("<H", 0))
    train = build(data_path=(str(prefix),), split="1,0,0", seq_length=64).train
    assert train.samples_per_epoch == (8 * documents - 1) // 64
    assert train.sample(0).tokens.shape == (65,)
