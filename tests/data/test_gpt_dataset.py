# SPDX-License-Identifier: Apache-2.0
"""Samples tile the stream; every epoch holds each once; validation counts each token once."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data.gpt_dataset import SequentialSamples, ShuffledSamples, TokenStream, open_stream
from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.indexed_writer import IndexedWriter
from megatron_core.errors import DataError


def counting_stream(folder: Path, tokens: int, document: int = 7) -> TokenStream:
    """Token i of the stream is i."""
    with IndexedWriter(folder / "counting", np.dtype(np.int32)) as writer:
        for start in range(0, tokens, document):
            writer.add_document(np.arange(start, min(start + document, tokens)))
    return open_stream(IndexedFile(folder / "counting"))


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 200), st.integers(1, 20), st.integers(0, 5))
def test_each_epoch_holds_each_sample_once(
    tmp_path_factory: pytest.TempPathFactory, tokens: int, seq_length: int, seed: int
) -> None:
    stream = counting_stream(tmp_path_factory.mktemp("epoch"), tokens)
    if tokens <= seq_length:
        with pytest.raises(DataError, match=f"{tokens} tokens to train on, but one sample takes {seq_length + 1}"):
            ShuffledSamples(stream, seq_length, (seed,))
        return
    data = ShuffledSamples(stream, seq_length, (seed,))
    n = data.samples_per_epoch
    for epoch in range(2):
        samples = [data.sample(epoch * n + i) for i in range(n)]
        assert sorted(sample.tokens[0] for sample in samples) == [i * seq_length for i in range(n)]
        for sample in samples:
            assert sample.tokens.tolist() == list(range(sample.tokens[0], sample.tokens[0] + seq_length + 1))
            assert sample.tokens.dtype == np.int64 and sample.num_targets == seq_length


def test_epochs_and_keys_shuffle_differently(tmp_path: Path) -> None:
    stream = counting_stream(tmp_path, 1001)
    data, other = ShuffledSamples(stream, 10, (1, "a")), ShuffledSamples(stream, 10, (1, "b"))
    orders = [[d.offset(e * 100 + i) for i in range(100)] for d in (data, other) for e in range(2)]
    assert len({tuple(order) for order in orders}) == 4
    assert all(order != sorted(order) for order in orders)


def test_the_order_is_pinned(tmp_path: Path) -> None:
    """A change of these numbers changes the data order of every run that is under way."""
    data = ShuffledSamples(counting_stream(tmp_path, 101), 10, (1234, "counting"))
    assert [data.offset(i) for i in range(12)] == [60, 30, 70, 40, 20, 10, 80, 90, 50, 0, 40, 60]


def test_a_part_starts_at_its_first_sequence(tmp_path: Path) -> None:
    file = counting_stream(tmp_path, 70).file
    stream = open_stream(file, (2, 5))
    assert (stream.start, stream.num_tokens) == (14, 21)
    assert SequentialSamples(stream, 4).sample(0).tokens.tolist() == [14, 15, 16, 17, 18]


def test_samples_of_a_file_beyond_32_bits(tmp_path: Path) -> None:
    """Three documents of 2^30 tokens hold 3,071 samples of 2^20 tokens."""
    file = counting_stream(tmp_path, 70).file
    huge = TokenStream(file, 0, 3 * 2**30)
    assert ShuffledSamples(huge, 2**20, (0,)).samples_per_epoch == 3071


@pytest.mark.parametrize("tokens", [2, 5, 9, 10, 13])
def test_validation_has_each_token_as_target_once(tmp_path: Path, tokens: int) -> None:
    data = SequentialSamples(counting_stream(tmp_path, tokens), 4)
    samples = [data.sample(i) for i in range(data.num_samples)]
    targets = [t for s in samples for t in s.tokens[1 : s.num_targets + 1].tolist()]
    assert targets == list(range(1, tokens))
    assert all(len(s.tokens) == 5 and s.num_targets > 0 for s in samples)


def test_one_token_cannot_be_evaluated(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 tokens to evaluate on"):
        SequentialSamples(counting_stream(tmp_path, 1), 4)
