# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process over a store in memory."""

import threading

import torch.distributed as dist

from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.training.hang_exchange import exchange, hang_was_announced
from megatron_core.training.hang_report import Standing

GRACE_S = 0.5


def _standing(waits: bool) -> Standing:
    log = CollectiveLog()
    if waits:
        log.begin("all_reduce", "dp", (0, 1, 2))
    return Standing(snapshot=log.snapshot())


def _exchange(world_size: int, survivors: dict[int, bool], grace_s: float = GRACE_S) -> dict[int, list[str]]:
    """What each survivor (rank: whether it waits in a collective) was told."""
    store, told = dist.HashStore(), {rank: [] for rank in survivors}
    threads = [
        threading.Thread(
            target=exchange,
            args=(store.clone(), rank, world_size, _standing(waits)),
            kwargs={"grace_s": grace_s, "tell": told[rank].append},
        )
        for rank, waits in survivors.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hang_was_announced(store)
    return told


def test_each_rank_hears_its_sentence_and_the_lowest_the_verdict() -> None:
    told = _exchange(3, {0: True, 1: True, 2: False}, grace_s=10.0)  # nobody is missing: nobody waits so long
    for rank in (0, 1):
        assert len(told[rank]) == 1 and told[rank][0].startswith(f"rank {rank} waits in all_reduce #1 ")
        assert "; rank 2 is not in a collective" in told[rank][0]
    assert "\nverdict: Others wait for rank 2: " in told[0][0] and "verdict" not in told[1][0]
    assert told[2] == ["rank 2 is not in a collective (it has called none yet)"]


def test_the_lowest_survivor_speaks_for_those_below() -> None:
    told = _exchange(4, {2: True, 3: True})
    assert "\nverdict: ranks 0, 1 did not answer: dead or stopped." in told[2][0]
    assert len(told[3]) == 1 and "verdict" not in told[3][0]


def test_nothing_was_announced_before() -> None:
    assert not hang_was_announced(dist.HashStore())
