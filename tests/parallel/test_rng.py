# SPDX-License-Identifier: Apache-2.0
"""Streams are named, so that order and neighbours do not matter."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.parallel.rng import keyed_generator, keyed_seed

PARTS = st.lists(st.one_of(st.integers(-(2**40), 2**40), st.text(max_size=5)), max_size=4).map(tuple)


@settings(deadline=None, max_examples=50)
@given(one=PARTS, other=PARTS)
def test_different_names_give_different_seeds(one: tuple, other: tuple) -> None:
    assert (keyed_seed(*one) == keyed_seed(*other)) == (one == other)
    assert 0 <= keyed_seed(*one) < 2**63


def test_types_and_boundaries_are_part_of_the_name() -> None:
    seeds = {keyed_seed(1), keyed_seed("1"), keyed_seed("a", "b"), keyed_seed("ab"), keyed_seed(1, 2), keyed_seed(12)}
    assert len(seeds) == 6


def test_seeds_are_the_same_in_every_process_and_version() -> None:
    assert keyed_seed(1234, "init", "layers.3.mlp.up.weight", 0) == 3425190226161261687


def test_a_stream_does_not_depend_on_what_was_drawn_before() -> None:
    first = torch.randn(5, generator=keyed_generator(1, "x"))
    torch.randn(100, generator=keyed_generator(2, "x"))
    torch.randn(7)
    assert torch.equal(torch.randn(5, generator=keyed_generator(1, "x")), first)
    assert not torch.equal(torch.randn(5, generator=keyed_generator(1, "y")), first)
