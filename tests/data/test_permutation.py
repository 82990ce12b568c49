# SPDX-License-Identifier: Apache-2.0
"""The keyed permutation is a bijection, the same for one element as for many, and looks like a shuffle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data.permutation import Permutation


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**63))
def test_bijection(n: int, seed: int) -> None:
    images = Permutation(n, (seed,)).many(np.arange(n))
    assert (np.sort(images) == np.arange(n)).all()


@settings(deadline=None)
@given(st.integers(1, 2**62 - 1), st.data())
def test_one_equals_many(n: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    permutation = Permutation(n, ("x", 7))
    images = permutation.many(np.array(indices))
    assert images.tolist() == [permutation(index) for index in indices]
    assert all(0 <= image < n for image in images.tolist())


def test_keys_give_different_orders() -> None:
    orders = [
        tuple(Permutation(1000, ("epoch", seed, epoch)).many(np.arange(1000))) for seed in (1, 2) for epoch in (0, 1)
    ]
    assert len(set(orders)) == 4
    assert all(sum(a == b for a, b in zip(orders[0], order)) < 10 for order in orders[1:])


@pytest.mark.parametrize("n", [3, 4, 5])
def test_small_sizes_reach_every_first_element_evenly(n: int) -> None:
    firsts = np.bincount([Permutation(n, (seed,))(0) for seed in range(3000)], minlength=n)
    assert abs(firsts / 3000 - 1 / n).max() < 0.04


def test_neighbours_are_spread_and_uncorrelated() -> None:
    n = 100_000
    images = Permutation(n, (5,)).many(np.arange(n)).astype(float)
    assert abs(np.corrcoef(np.arange(n), images)[0, 1]) < 0.015
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 0.015
    # Any tenth of the order draws evenly from each tenth of the data: chi-square with 81 degrees of freedom.
    cells = np.histogram2d(np.arange(n), images, bins=10)[0]
    assert ((cells - n / 100) ** 2 / (n / 100)).sum() < 130


def test_out_of_range_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Permutation(10, (0,))(10)
