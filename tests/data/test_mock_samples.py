# SPDX-License-Identifier: Apache-2.0
"""Mock tokens are a function of their number, fill the vocabulary, and can be predicted most of the time."""

import numpy as np

from megatron_core.data.mock_samples import MockSamples


def test_keyed_by_seed_part_and_number() -> None:
    rows = [MockSamples(1000, 64, seed, part).sample(n).tokens for seed in (1, 2) for part in "ab" for n in (0, 1)]
    assert len({row.tobytes() for row in rows}) == 8
    assert (rows[0] == MockSamples(1000, 64, 1, "a").sample(0).tokens).all()
    assert rows[0].shape == (65,) and rows[0].dtype == np.int64


def test_most_steps_are_the_same_stride() -> None:
    tokens = np.stack([MockSamples(97, 256, 5, "train").sample(n).tokens for n in range(20)])
    assert tokens.min() >= 0 and tokens.max() < 97
    steps = (np.diff(tokens, axis=1) % 97).ravel()
    assert 0.85 < np.bincount(steps).max() / len(steps) < 0.91


def test_tiny_vocabularies() -> None:
    assert set(MockSamples(1, 8, 0, "train").sample(0).tokens) == {0}
    assert set(MockSamples(2, 64, 0, "train").sample(0).tokens) == {0, 1}
