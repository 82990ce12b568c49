# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.checkpoint.rectangle import Rectangle, cut, flat_range_to_rectangles, whole

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@given(SHAPES, st.data())
@settings(deadline=None)
def test_flat_ranges_in_order_by_few_rectangles(shape: tuple[int, ...], data: st.DataObject) -> None:
    volume = math.prod(shape)
    start = data.draw(st.integers(0, volume))
    stop = data.draw(st.integers(start, volume))
    found = flat_range_to_rectangles(shape, start, stop)
    assert len(found) <= max(2 * len(shape) - 1, 1)
    flat = np.arange(volume).reshape(shape)
    origin = (0,) * len(shape)
    elements = [flat[part.slices(origin)].reshape(-1) for part in found]
    assert np.concatenate([*elements, []]).tolist() == list(range(start, stop))


@given(SHAPES, st.integers(1, 200))
@settings(deadline=None)
def test_cut_keeps_the_order_and_the_limit(shape: tuple[int, ...], limit: int) -> None:
    parts = list(cut(whole(shape), limit))
    flat = np.arange(math.prod(shape)).reshape(shape)
    assert np.concatenate([flat[part.slices((0,) * len(shape))].reshape(-1) for part in parts]).tolist() == list(
        range(math.prod(shape))
    )
    assert all(part.volume <= limit for part in parts)


def test_cut_takes_whole_rows_where_it_can() -> None:
    assert [part.shape for part in cut(whole((7, 10)), 30)] == [(3, 10), (3, 10), (1, 10)]


def test_intersection() -> None:
    square = Rectangle((2, 2), (6, 6))
    assert square.intersection(Rectangle((0, 4), (3, 9))) == Rectangle((2, 4), (3, 6))
    assert square.intersection(Rectangle((6, 2), (7, 6))) is None, "neighbours share nothing"
    assert Rectangle((), ()).intersection(Rectangle((), ())) == Rectangle((), ())


def test_places() -> None:
    part = Rectangle((2, 3), (4, 6))
    assert (part.shape, part.volume, str(part)) == ((2, 3), 6, "[2:4, 3:6]")
    assert part.slices((2, 1)) == (slice(0, 2), slice(2, 5))
    assert part.shifted((1, 10)) == Rectangle((3, 13), (5, 16))
    assert part.rows(1, 4, 5) == Rectangle((2, 4), (4, 5))
    assert (whole(()).volume, whole(()).first_long_dim(), whole((1, 1, 3)).first_long_dim()) == (1, None, 2)
