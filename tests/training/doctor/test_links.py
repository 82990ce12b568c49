# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import torch.distributed as dist

from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.training.doctor.exchange import Exchange
from megatron_core.training.doctor.links import LinkTime, measure_links, measured_axes
from tests.rank_pool import ranks

SIZES = (4, 2**17)


@ranks({"tp": 2}, {"tp": 2, "pp": 2})
def test_every_group_of_every_axis(ctx: ParallelContext, tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), ctx.world.size)
    exchange = Exchange(store, ctx.rank, ctx.world.size, 0.5)
    said: list[str] = []
    found = measure_links(ctx, exchange, SIZES, said.append)
    axes = ["tp"] if ctx.world.size == 2 else ["tp", "pp", "world"]
    assert measured_axes(ctx) == axes
    assert len(said) == len(axes) * 2 * len(SIZES) and said[0] == "measuring tp all_reduce of 4 bytes"
    if ctx.rank != 0:
        assert found is None
        return
    assert found is not None
    measured = {(link.axis, link.operation, link.nbytes, link.ranks) for link in found}
    groups = {"tp": ctx.grid.groups("tp"), "pp": ctx.grid.groups("pp"), "world": [tuple(range(ctx.world.size))]}
    assert measured == {
        (axis, operation, nbytes, ranks)
        for axis in axes
        for operation in ("all_reduce", "ring")
        for nbytes in SIZES
        for ranks in groups[axis]
    }
    assert len(measured) == len(found) and all(link.seconds > 0 for link in found)


def test_alone_there_is_nothing_to_measure() -> None:
    ctx = single_process_context()
    assert measured_axes(ctx) == []
    assert measure_links(ctx, Exchange(dist.HashStore(), 0, 1, 0.1), SIZES, lambda text: None) == []


def test_what_a_link_carries() -> None:
    link = LinkTime(axis="tp", operation="all_reduce", nbytes=8_000_000, ranks=(0, 1, 2, 3), seconds=0.01)
    assert link.bytes_per_s == pytest.approx(1.2e9)
    ring = LinkTime(axis="tp", operation="ring", nbytes=8_000_000, ranks=(0, 1, 2, 3), seconds=0.01)
    assert ring.bytes_per_s == pytest.approx(8e8)
