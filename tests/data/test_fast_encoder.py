# SPDX-License-Identifier: Apache-2.0
"""The faster encoder stands in only where it agrees."""

from collections.abc import Sequence

import numpy as np

from megatron_core.data.fast_encoder import fast_encoder
from tests.data.tokenizer_files import byte_level_bpe

TOKENIZER = byte_level_bpe([])


def reference(texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array(TOKENIZER.encode(text).ids, dtype=np.int64) for text in texts]


def off_by_one(texts: Sequence[str]) -> list[np.ndarray]:
    return [ids + 1 for ids in reference(texts)]


def test_agreement_is_needed() -> None:
    assert fast_encoder(TOKENIZER.to_str(), reference) is not None
    assert fast_encoder(TOKENIZER.to_str(), off_by_one) is None


def test_unknown_kinds_are_left_to_the_reference() -> None:
    assert fast_encoder('{"model": {"type": "Unheard"}}', reference) is None
    assert fast_encoder(b"no model", reference) is None


def test_texts_to_avoid_go_to_the_reference() -> None:
    def marked(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([7]) if "!!" in text else ids for text, ids in zip(texts, reference(texts))]

    encode = fast_encoder(TOKENIZER.to_str(), marked, avoid=["!!"])
    assert encode is not None
    assert [ids.tolist() for ids in encode(["ab", "a!!b"])] == [reference(["ab"])[0].tolist(), [7]]
