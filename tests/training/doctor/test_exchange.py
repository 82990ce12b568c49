# SPDX-License-Identifier: Apache-2.0
import pytest
import torch.distributed as dist

from megatron_core.training.doctor.exchange import Exchange, SilentRanksError
from tests.training.doctor.thread_ranks import on_threads


def test_all_values_reach_rank_0_and_its_own_all_ranks() -> None:
    def talk(exchange: Exchange) -> tuple[object, object]:
        told = exchange.gather("facts", {"rank": exchange.rank})
        return told, exchange.broadcast("verdict", [1] if exchange.rank == 0 else None)

    results = on_threads(3, talk)
    assert results == [([{"rank": 0}, {"rank": 1}, {"rank": 2}], [1]), (None, [1]), (None, [1])]


def test_a_world_of_one() -> None:
    assert on_threads(1, lambda exchange: exchange.gather("facts", "x")) == [["x"]]


def test_silent_ranks_are_named() -> None:
    store = dist.HashStore()
    Exchange(store, 2, 5, 0.001).gather("facts", 1)
    with pytest.raises(SilentRanksError, match=r"ranks 1,3-4 did not answer \(facts\) within 0.001 minutes"):
        Exchange(store, 0, 5, 0.001).gather("facts", 0)


def test_a_silent_rank_0_is_told_too() -> None:
    with pytest.raises(SilentRanksError, match="rank 1 waited for verdict in vain: look at the log of rank 0"):
        Exchange(dist.HashStore(), 1, 2, 0.001).broadcast("verdict", None)
