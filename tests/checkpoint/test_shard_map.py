# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.checkpoint import shard_map
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.checkpoint.shard_map import Part, deal, plan_reads

MIB = 2**20


def part(name: str, *shape: int, itemsize: int = 4) -> Part:
    return Part(name=name, rectangle=whole(shape), itemsize=itemsize)


def test_each_byte_is_dealt_once_and_evenly() -> None:
    held = [part("a", 300, 7), part("b", 4000), part("norm", 8), part("scalar"), part("wide", 1, 5000, itemsize=2)]
    dealt = deal(held, 5, limit=2000)
    count = {p.name: np.zeros(p.rectangle.shape, int) for p in held}
    for block in [block for blocks in dealt for block in blocks]:
        count[block.name][block.rectangle.slices((0,) * len(block.rectangle.start))] += 1
        assert block.nbytes <= 2000
    assert all((times == 1).all() for times in count.values())
    loads = [sum(block.nbytes for block in blocks) for blocks in dealt]
    assert max(loads) - min(loads) <= 2000
    assert dealt == deal(held, 5, limit=2000)


def test_parts_come_in_the_order_held() -> None:
    held = [part(name, 10) for name in "cab"]
    assert [[block.name for block in blocks] for blocks in deal(held, 1)] == [["c", "a", "b"]]


@given(st.lists(st.integers(1, 6), max_size=4).map(tuple), st.sampled_from([1, 16, 60, 1000]), st.data())
@settings(deadline=None)
def test_reads_hold_what_is_wanted_once(shape: tuple[int, ...], limit: int, data: st.DataObject) -> None:
    origin = tuple(data.draw(st.integers(0, 3)) for _ in shape)
    piece = whole(shape).shifted(origin)
    start = tuple(data.draw(st.integers(0, extent - 1)) for extent in shape)
    stop = tuple(data.draw(st.integers(a + 1, extent)) for a, extent in zip(start, shape))
    wanted = Rectangle(start, stop).shifted(origin)
    bytes_of = np.arange(piece.volume).reshape(shape) * 4
    count = np.zeros(shape, int)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_map, "BLOCK_BYTES", 16)
        for read in plan_reads(piece, wanted, 4, limit):
            held = bytes_of[read.rectangle.slices(origin)]
            count[read.rectangle.slices(origin)] += 1
            assert (read.start, read.stop) == (held.min(), held.max() + 4)
            assert read.stop - read.start <= max(limit, 4)
            assert np.diff(np.sort(held.reshape(-1)), append=held.max()).max() < 16 + 4
    expected = np.zeros(shape, int)
    expected[wanted.slices(origin)] = 1
    assert (count == expected).all()


def test_neighbouring_rows_share_a_read() -> None:
    piece = whole((1000, 2000))
    assert len(list(plan_reads(piece, Rectangle((0, 500), (1000, 700)), 4))) == 1, "gaps below a block are read over"
    assert len(list(plan_reads(whole((4, 3 * MIB)), Rectangle((0, 0), (4, 10)), 4))) == 4, "larger ones are not"
    assert len(list(plan_reads(whole((40, MIB)), whole((40, MIB)), 4))) == 3, "64 MiB a read"
