# SPDX-License-Identifier: Apache-2.0
"""Where each token id lives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.parallel.context import Group
from megatron_core.tensor_parallel.vocab import VocabSlice, vocab_slice
from tests.small_model import small


def _slices(vocabulary: int, divisor: int, tp: int) -> list[VocabSlice]:
    config = small(vocab_size=vocabulary, make_vocab_size_divisible_by=divisor)
    return [vocab_slice(config, Group("tp", tuple(range(tp)), rank)) for rank in range(tp)]


@pytest.mark.parametrize(
    "vocabulary, divisor, tp, padded",
    [(50257, 128, 1, 50304), (50257, 128, 8, 50304), (50257, 1, 2, 50258), (37, 1, 4, 40), (37, 128, 4, 128)],
)
def test_padded_sizes(vocabulary: int, divisor: int, tp: int, padded: int) -> None:
    config = small(vocab_size=vocabulary, make_vocab_size_divisible_by=divisor)
    assert config.padded_vocabulary(tp) == padded


def test_a_padded_size_given_outright_is_kept() -> None:
    assert small(padded_vocab_size=48).padded_vocabulary(4) == 48


def test_later_ranks_may_hold_padding_alone() -> None:
    assert [(piece.start, piece.stop) for piece in _slices(37, 128, 4)] == [(0, 32), (32, 37), (37, 37), (37, 37)]
    assert {piece.rows for piece in _slices(37, 128, 4)} == {32}


@settings(deadline=None)
@given(vocabulary=st.integers(1, 1000), divisor=st.sampled_from([1, 3, 64, 128]), tp=st.integers(1, 16))
def test_every_id_lives_on_one_rank(vocabulary: int, divisor: int, tp: int) -> None:
    slices = _slices(vocabulary, divisor, tp)
    assert [token for piece in slices for token in range(piece.start, piece.stop)] == list(range(vocabulary))
    assert all(piece.stop - piece.start <= piece.rows for piece in slices)
