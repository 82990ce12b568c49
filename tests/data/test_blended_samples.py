# SPDX-License-Identifier: Apache-2.0
"""A blend of two small sets: shares of samples over many epochs of each, under the blend's own numbers."""

from megatron_core.data.blend import Blend
from megatron_core.data.blended_samples import BlendedSamples
from megatron_core.data.mock_samples import MockSamples


def test_shares_numbers_and_sources() -> None:
    sets = (MockSamples(50, 4, 0, "a"), MockSamples(50, 4, 0, "b"))
    data = BlendedSamples(sets, Blend([0.3, 0.7]))
    origins = []
    for number in range(100):
        sample = data.sample(number)
        dataset, index = data.blend.locate(number)
        assert sample.number == number
        assert sample.tokens.tolist() == sets[dataset].sample(index).tokens.tolist()
        assert data.source(number) == "--mock-data"
        origins.append(dataset)
        assert abs(origins.count(0) - 0.3 * len(origins)) <= 1
    assert (origins.count(0), origins.count(1)) == (30, 70)
