# SPDX-License-Identifier: Apache-2.0
"""What one validation reads: shares of the blend, spread over each set, nothing twice."""

import pytest

from megatron_core.data.blend import Blend
from megatron_core.data.mock_samples import MockSamples
from megatron_core.data.selected_samples import SelectedSamples, select


def sets(*sizes: int) -> tuple[MockSamples, ...]:
    return tuple(MockSamples(50, 4, i, "valid", size) for i, size in enumerate(sizes))


def test_shares_and_small_sets() -> None:
    assert select(sets(100, 100), Blend([1, 3]), 40).counts == (10, 30)
    assert select(sets(100, 5), Blend([1, 1]), 40).counts == (20, 5)
    assert select(sets(100, 5), Blend([1, 1]), None).counts == (100, 5)
    assert select(sets(3), Blend([1]), 4).num_samples == 3


@pytest.mark.parametrize("count", [1, 3, 7, 99, 100])
def test_samples_are_spread_and_none_comes_twice(count: int) -> None:
    data = sets(100)[0]
    selected = SelectedSamples((data,), (count,))
    positions = [i * 100 // count for i in range(count)]
    assert len(set(positions)) == count
    for number, position in enumerate(positions):
        assert selected.sample(number).tokens.tolist() == data.sample(position).tokens.tolist()
        assert selected.sample(number).number == number
    assert selected.source(0) == "--mock-data"
    with pytest.raises(AssertionError):
        selected.sample(count)
