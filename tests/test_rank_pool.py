# SPDX-License-Identifier: Apache-2.0
"""The pool itself: order of results, reports of failing, dying and hanging ranks, and that nothing outlives a call."""

import os
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import RankPool, RanksFailedError, ranks, run_ranks


@pytest.fixture
def pool() -> Iterator[RankPool]:
    """A pool of its own, so that the session's is not rebuilt by failures that are meant."""
    pool = RankPool()
    yield pool
    pool.close()


def _sum_of_ranks(rank: int, world_size: int, offset: int = 0) -> tuple[int, torch.Tensor]:
    total = torch.tensor([rank + offset])
    dist.all_reduce(total)
    return rank, total


def _fail_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        raise ValueError(f"seven ate {8 + rank}")
    dist.barrier()


def _die_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        os._exit(7)
    dist.barrier()


def _never_returns(rank: int, world_size: int) -> None:
    if rank == 0:
        time.sleep(1000)
    dist.barrier()


def _spoil(rank: int, world_size: int) -> None:
    os.environ["RANK_POOL_SPOILED"] = "1"
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(99)


def _spoiled(rank: int, world_size: int) -> tuple[str | None, torch.dtype, float]:
    return os.environ.get("RANK_POOL_SPOILED"), torch.get_default_dtype(), float(torch.rand(()))


def test_results_come_in_rank_order() -> None:
    results = run_ranks(_sum_of_ranks, 3, offset=10)
    assert [rank for rank, _ in results] == [0, 1, 2]
    assert all(torch.equal(total, torch.tensor([33])) for _, total in results)


def test_smaller_worlds_use_the_first_ranks() -> None:
    assert [rank for rank, _ in run_ranks(_sum_of_ranks, 1)] == [0]
    assert run_ranks(_sum_of_ranks, 2)[1][1].item() == 1


def test_a_failing_rank_shows_its_traceback_and_the_pool_goes_on(pool: RankPool) -> None:
    with pytest.raises(RanksFailedError, match=r"rank 1 of 2 failed(.|\n)*_fail_on_rank_1(.|\n)*seven ate 9"):
        pool.run(_fail_on_rank_1, 2)
    assert [rank for rank, _ in pool.run(_sum_of_ranks, 2)] == [0, 1]


def test_a_dying_rank_is_named(pool: RankPool) -> None:
    with pytest.raises(RanksFailedError, match="rank 1 of 2 failed:\nthe process died with exit code 7"):
        pool.run(_die_on_rank_1, 2)


def test_a_timeout_shows_every_stack(pool: RankPool) -> None:
    with pytest.raises(RanksFailedError) as caught:
        pool.call(_never_returns, 2, timeout=3.0)
    message = str(caught.value)
    for rank in (0, 1):
        assert f"rank {rank} of 2 had not finished after 3 s" in message
    assert message.count("in _never_returns") == 2
    assert "in barrier" in message
    assert [rank for rank, _ in pool.run(_sum_of_ranks, 2)] == [0, 1]


def test_nothing_outlives_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_ranks(_spoiled, 2)
    run_ranks(_spoil, 2)
    monkeypatch.setenv("RANK_POOL_SPOILED", "2")
    assert run_ranks(_spoiled, 2) == before
    assert before[0][:2] == (None, torch.float32)


@ranks(4, tp=2, kv_replicas=2)
def test_a_number_of_ranks_is_filled_up_with_dp(ctx: ParallelContext) -> None:
    assert (ctx.tp.size, ctx.dp.size, ctx.pp.size, ctx.group("kv").size) == (2, 2, 1, 2)
    assert dist.get_world_size() == 4


@pytest.mark.parametrize("number", [3, 4])
@ranks({"tp": 2}, {"tp": 2, "pp": 2}, dp=1)
def test_layouts_and_parameters_combine(ctx: ParallelContext, number: int) -> None:
    assert ctx.tp.size == 2 and ctx.dp.size == 1
    assert ctx.pp.size == ctx.world.size // 2
    assert number in (3, 4)
