# SPDX-License-Identifier: Apache-2.0
"""Every layer has one place, ends are light, and the dearest stage is as cheap as brute force can make it."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.errors import ConfigError
from megatron_core.pipeline.partition import partition


def counts(*args, **kwargs):
    return [len(layers) for layers in partition(*args, **kwargs)]


@settings(deadline=None, max_examples=300)
@given(
    p=st.integers(1, 16),
    v=st.integers(1, 4),
    spare=st.integers(0, 64),
    embedding=st.sampled_from([0.0, 0.3, 1.0]),
    head=st.sampled_from([0.0, 0.5, 1.0, 7.0]),
)
def test_every_layer_is_placed_once_and_in_order(p, v, spare, embedding, head):
    num_layers = p * v + spare
    ranges = partition(num_layers, p, v, embedding_cost=embedding, head_cost=head)
    assert len(ranges) == p * v
    assert [layer for layers in ranges for layer in layers] == list(range(num_layers))
    assert all(len(layers) > 0 for layers in ranges[1:-1])


@settings(deadline=None, max_examples=200)
@given(p=st.integers(1, 16), v=st.integers(1, 4), spare=st.integers(0, 64))
def test_by_count_stages_differ_by_one_layer_at_most(p, v, spare):
    sizes = counts(p * v + spare, p, v)
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] + sizes[-1] <= 2 * min(sizes) + max(0, spare % (p * v) - max(0, p * v - 2))


@pytest.mark.parametrize(
    "args, sizes",
    [
        ((5, 2), [3, 2]),
        ((7, 2), [4, 3]),
        ((10, 3), [3, 4, 3]),
        ((30, 4), [7, 8, 8, 7]),
        ((6, 2, 2), [1, 2, 2, 1]),
        ((105, 35), [3] * 35),
        ((4, 1), [4]),
    ],
)
def test_uneven_numbers_of_layers(args, sizes):
    assert counts(*args) == sizes


def test_chunks_alternate_between_ranks():
    assert partition(8, 2, 2) == (range(2), range(2, 4), range(4, 6), range(6, 8))


def test_a_remainder_goes_to_the_ranks_with_least_to_do():
    sizes = counts(12, 4, 2, head_cost=3)
    assert sizes == [1, 2, 2, 1, 2, 2, 2, 0]  # the last rank has 1 layer and the head
    assert [sum(sizes[rank::4]) for rank in range(4)] == [3, 4, 4, 1]


def test_a_head_of_54_percent_stands_alone():
    assert counts(6, 2, layer_cost=0.46 / 6, head_cost=0.54) == [6, 0]


def test_embedding_and_head_count_as_layers_when_asked():
    assert counts(30, 4, embedding_cost=1, head_cost=1) == [7, 8, 8, 7]
    assert counts(6, 4, embedding_cost=1, head_cost=1) == [1, 2, 2, 1]
    assert counts(7, 2, head_cost=1) == [4, 3]
    assert counts(7, 2, embedding_cost=1) == [3, 4]


def test_first_and_last_rank_may_be_given():
    assert counts(32, 4, first=6, last=6) == [6, 10, 10, 6]
    assert counts(32, 4, first=6) == [6, 9, 9, 8]
    assert counts(13, 2, first=8) == [8, 5]
    sizes = counts(32, 4, 2, first=6, last=10)
    assert sizes[0] == sizes[4] == 3
    assert sizes[3] == sizes[7] == 5
    assert sum(sizes) == 32


@settings(deadline=None, max_examples=150)
@given(
    p=st.integers(2, 5),
    spare=st.integers(0, 6),
    layer=st.sampled_from([0.5, 1.0, 3e11]),
    embedding=st.floats(0, 4),
    head=st.floats(0, 8),
)
def test_the_dearest_stage_is_as_cheap_as_possible(p, spare, layer, embedding, head):
    num_layers = p + spare

    def dearest(sizes):
        costs = [float(size) for size in sizes]
        costs[0] += embedding
        costs[-1] += head
        return max(costs)

    ends = range(num_layers + 1)
    middles = range(1, num_layers + 1)
    splits = product(ends, *[middles] * (p - 2), ends)
    least = min(
        dearest(split)
        for split in splits
        if sum(split) == num_layers and (split[0] or embedding) and (split[-1] or head)
    )
    found = counts(num_layers, p, layer_cost=layer, embedding_cost=embedding * layer, head_cost=head * layer)
    assert dearest(found) == pytest.approx(least, abs=1e-8)


@pytest.mark.parametrize(
    "args, given_layers, words",
    [
        ((3, 4), {}, "3 layers cannot be split over 4 pipeline ranks"),
        ((8, 4), {"first": 5, "last": 4}, "5 fixed for the first rank, 4 fixed for the last rank"),
        ((8, 4), {"first": 4, "last": 4}, "cannot be split"),
        ((8, 2), {"first": 3, "last": 4}, "cannot be split"),
        ((8, 4), {"first": 9}, "give 0 to 8"),
        ((8, 4), {"last": -1}, "give 0 to 8"),
        ((16, 4, 2), {"first": 3}, "give a multiple of 2"),
        ((16, 4, 2), {"last": 0}, "give a multiple of 2"),
        ((8, 1), {"first": 8}, "at least 2 pipeline ranks"),
    ],
)
def test_the_impossible_is_refused(args, given_layers, words):
    with pytest.raises(ConfigError, match=words):
        partition(*args, **given_layers)
