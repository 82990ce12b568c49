# SPDX-License-Identifier: Apache-2.0
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from megatron_core.training.meeting import meet


def start(store: dist.Store, ranks: list[int], world_size: int) -> list[str]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [f.result() for f in [pool.submit(meet, store.clone(), rank, world_size, 20.0) for rank in ranks]]


def test_all_ranks_of_a_start_have_one_word_and_the_next_start_another() -> None:
    store = dist.HashStore()
    words = [start(store, [2, 0, 1], 3) for _ in range(3)]
    assert all(len(set(found)) == 1 for found in words) and len({found[0] for found in words}) == 3


def test_words_of_the_dead_are_not_taken_for_those_of_the_living() -> None:
    """A start that died half-way left words and a list; so did a complete one of other size."""
    store = dist.HashStore()
    start(store, [0, 1, 2, 3], 4)
    with pytest.raises(TimeoutError, match=r"not all 2 ranks came within 0\.2 s"):
        meet(store, 1, 2, 0.2)
    assert len(set(start(store, [0, 1], 2))) == 1


def test_who_comes_late_finds_the_others_waiting() -> None:
    """Rank 0 first takes a dead rank's word for its own; the list is written anew when the living one comes."""
    store = dist.HashStore()
    start(store, [0, 1], 2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, store.clone(), 0, 2, 20.0)
        time.sleep(0.3)
        second = pool.submit(meet, store.clone(), 1, 2, 20.0)
        assert first.result() == second.result()
