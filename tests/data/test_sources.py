# SPDX-License-Identifier: Apache-2.0
"""Streams of each part, and the blend that remains when a part is empty somewhere."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from megatron_core.config.data import DataConfig
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.data.sources import Sources, short_name
from megatron_core.errors import DataError


def write(prefix: Path, documents: int) -> str:
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for _ in range(documents):
            writer.add_document(np.zeros(10))
    return str(prefix)


def test_parts_of_a_split(tmp_path: Path) -> None:
    p, q = write(tmp_path / "p", 100), write(tmp_path / "q", 10)
    sources = Sources(DataConfig(data_path=("1", p, "3", q), split="8,1,1"))
    spec, streams = sources.train()
    assert spec.prefixes == (p, q)
    assert [(stream.start, stream.end) for stream in streams] == [(0, 800), (0, 80)]
    held_out = sources.held_out("valid")
    assert held_out is not None
    blend, streams = held_out
    assert blend.weights == (Fraction(1, 4), Fraction(3, 4))
    assert [(stream.start, stream.end) for stream in streams] == [(800, 900), (80, 90)]


def test_sets_without_a_part_are_left_out_of_its_blend(tmp_path: Path) -> None:
    p, q = write(tmp_path / "p", 100), write(tmp_path / "q", 3)
    sources = Sources(DataConfig(data_path=("1", p, "3", q)))
    held_out = sources.held_out("valid")
    assert held_out is not None and held_out[0].weights == (1,)
    assert [stream.file.prefix for stream in held_out[1]] == [p]
    assert sources.held_out("test") is None
    assert Sources(DataConfig(data_path=(p,), split="9,1")).held_out("test") is None


def test_missing_parts(tmp_path: Path) -> None:
    q = write(tmp_path / "q", 3)
    with pytest.raises(DataError, match="the valid part is empty"):
        Sources(DataConfig(data_path=(q,))).held_out("valid")
    with pytest.raises(DataError, match="the train part is empty"):
        Sources(DataConfig(data_path=(q,), split="0,1,0")).train()
    with IndexedWriter(tmp_path / "one", np.dtype(np.uint16)) as writer:
        writer.add_document(np.zeros(1))
    sources = Sources(DataConfig(train_data_path=(q,), valid_data_path=(str(tmp_path / "one"),)))
    with pytest.raises(DataError, match="fewer than 2 tokens"):
        sources.held_out("valid")
    assert sources.held_out("test") is None


def test_names_do_not_depend_on_the_folder() -> None:
    assert short_name("/a/b/wiki_text_document") == short_name("wiki_text_document")
