# SPDX-License-Identifier: Apache-2.0
"""Rearranged pieces hold the document's text, in the shares and orders asked for, keyed by sample number."""

from dataclasses import dataclass

import numpy as np
import pytest

from megatron_core.data.byte_tokenizer import ByteTokenizer
from megatron_core.data.fim import FimSamples
from megatron_core.data.huggingface_tokenizer import HuggingFaceTokenizer
from megatron_core.data.sample import Sample
from megatron_core.errors import DataError
from tests.data.tokenizer_files import byte_level_bpe

TOKENIZER = HuggingFaceTokenizer(byte_level_bpe(["<|endoftext|>", "<fim_prefix>", "<fim_middle>", "<fim_suffix>"]))
EOD, PREFIX, MIDDLE, SUFFIX = 0, 1, 2, 3
TEXT = "the quick brown fox jumps over the lazy dog, naïve café 漢字"


@dataclass(frozen=True)
class Fixed:
    """The same tokens for every number."""

    tokens: tuple[int, ...]

    def sample(self, number: int) -> Sample:
        return Sample(number, np.array(self.tokens), len(self.tokens) - 1)

    def source(self, number: int) -> str:
        return "fixed"


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).tolist()


def room(length: int) -> Fixed:
    """A document, an end of document, and another document, long enough that nothing is cut off."""
    return Fixed((*ids(TEXT), EOD, *ids("other " * length)))


def parts_of(piece: list[int]) -> tuple[str, str, str]:
    """Prefix, middle and suffix of a rearranged piece in either order."""
    at = {mark: piece.index(mark) for mark in (PREFIX, MIDDLE, SUFFIX)}
    if at[SUFFIX] == 1:  # <prefix> <suffix> S <middle> P M
        return TOKENIZER.decode(piece[at[MIDDLE] + 1 :]), "", TOKENIZER.decode(piece[2 : at[MIDDLE]])
    prefix = TOKENIZER.decode(piece[1 : at[SUFFIX]])
    return prefix, TOKENIZER.decode(piece[at[MIDDLE] + 1 :]), TOKENIZER.decode(piece[at[SUFFIX] + 1 : at[MIDDLE]])


@pytest.mark.parametrize("spm_rate", [0.0, 1.0])
def test_a_rearranged_piece_holds_the_text(spm_rate: float) -> None:
    data = FimSamples(room(60), TOKENIZER, rate=1.0, spm_rate=spm_rate, seed=7)
    for number in range(30):
        tokens = data.sample(number).tokens.tolist()
        piece = tokens[: tokens.index(EOD)]
        assert "".join(parts_of(piece)) == TEXT
        assert piece[0] == PREFIX


def test_cuts_fall_within_tokens_and_differ_between_samples() -> None:
    data = FimSamples(room(60), TOKENIZER, rate=1.0, spm_rate=0.0, seed=7)
    cuts = {parts_of(data.sample(n).tokens.tolist()[: data.sample(n).tokens.tolist().index(EOD)]) for n in range(40)}
    assert len(cuts) == 40
    assert len({len(prefix) for prefix, _, _ in cuts}) > 15


@pytest.mark.parametrize(("rate", "spm_rate"), [(0.5, 0.5), (0.9, 0.1), (0.0, 0.5)])
def test_shares(rate: float, spm_rate: float) -> None:
    data = FimSamples(room(10), TOKENIZER, rate=rate, spm_rate=spm_rate, seed=3)
    firsts = [data.sample(number).tokens[:2].tolist() for number in range(600)]
    chosen = [first for first in firsts if first[0] == PREFIX]
    assert abs(len(chosen) / 600 - rate) < 0.07
    if chosen:
        assert abs(sum(first[1] == SUFFIX for first in chosen) / len(chosen) - spm_rate) < 0.12


def test_the_length_stays_and_padding_is_masked() -> None:
    short = FimSamples(Fixed(tuple(ids(TEXT))), TOKENIZER, rate=1.0, spm_rate=0.5, seed=1)
    for number in range(10):
        sample = short.sample(number)
        assert len(sample.tokens) == len(ids(TEXT)) and sample.num_targets == len(ids(TEXT)) - 1
    # Characters that were written one token a byte come back as fewer tokens: the rest is padding.
    spelled = tuple(int(i) for byte in TEXT.replace("ï", "").encode("ascii", "ignore") for i in ids(chr(byte)))
    sample = FimSamples(Fixed(spelled), TOKENIZER, rate=1.0, spm_rate=0.0, seed=1).sample(0)
    assert len(sample.tokens) == len(spelled) and sample.num_targets < len(spelled) - 1
    assert not sample.tokens[sample.num_targets + 1 :].any()


def test_keyed_by_sample_number_and_seed() -> None:
    one, other = (FimSamples(room(60), TOKENIZER, rate=1.0, spm_rate=0.5, seed=seed) for seed in (1, 2))
    assert one.sample(5).tokens.tolist() == one.sample(5).tokens.tolist()
    assert one.sample(5).tokens.tolist() != other.sample(5).tokens.tolist()
    assert one.source(3) == "fixed"


def test_a_piece_cut_within_a_character_is_left_alone() -> None:
    tokens = tuple(ids("漢字")[1:])
    assert FimSamples(Fixed(tokens), TOKENIZER, rate=1.0, spm_rate=0.5, seed=1).sample(0).tokens.tolist() == list(
        tokens
    )


def test_a_tokenizer_without_the_marks_is_refused() -> None:
    with pytest.raises(DataError, match="--fim-rate: the tokenizer has no tokens"):
        FimSamples(room(1), ByteTokenizer(), rate=0.5, spm_rate=0.5, seed=0)
