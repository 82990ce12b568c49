# SPDX-License-Identifier: Apache-2.0
import itertools
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.checkpoint.cover import find_overlap
from megatron_core.checkpoint.rectangle import Rectangle, cut, flat_range_to_rectangles, whole


@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.tuples(st.tuples(*[st.integers(0, 6)] * n), st.tuples(*[st.integers(1, 3)] * n)), max_size=7
        )
    )
)
@settings(deadline=None)
def test_agrees_with_comparing_all_pairs(drawn: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    rectangles = [Rectangle(start, tuple(map(sum, zip(start, extent)))) for start, extent in drawn]
    expected = any(a.intersection(b) is not None for a, b in itertools.combinations(rectangles, 2))
    found = find_overlap(rectangles)
    assert (found is not None) == expected
    if found is not None:
        assert found[0].intersection(found[1]) is not None


def test_a_pinwheel_has_no_straight_cut() -> None:
    arms = [((0, 0), (1, 2)), ((0, 2), (2, 3)), ((2, 1), (3, 3)), ((1, 0), (3, 1)), ((1, 1), (2, 2))]
    pinwheel = [Rectangle(*arm) for arm in arms]
    assert find_overlap(pinwheel) is None
    assert find_overlap([*pinwheel, Rectangle((1, 1), (2, 2))]) is not None


def test_thousands_of_pieces_are_quick() -> None:
    """8 column slabs, each cut into 16 flat ranges of several rectangles, in blocks: as a sharded optimizer saves."""
    pieces = []
    for slab in range(8):
        for part in range(16):
            for rectangle in flat_range_to_rectangles((1000, 37), part * 37000 // 16, (part + 1) * 37000 // 16):
                pieces += [block.shifted((0, 37 * slab)) for block in cut(rectangle, 80)]
    assert len(pieces) > 3000 and sum(piece.volume for piece in pieces) == whole((1000, 296)).volume
    began = time.process_time()
    assert find_overlap(pieces) is None
    assert time.process_time() - began < 2
    assert find_overlap([*pieces, pieces[-1]]) == (pieces[-1], pieces[-1])


def test_long_neighbours_are_quick() -> None:
    """4,000 columns side by side, which a sweep along rows would all compare with each other."""
    columns = [Rectangle((0, column), (1000, column + 1)) for column in range(4000)]
    began = time.process_time()
    assert find_overlap(columns) is None
    assert time.process_time() - began < 1
