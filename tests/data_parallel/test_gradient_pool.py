# SPDX-License-Identifier: Apache-2.0
"""Two lanes in turn, more only where more buckets are open at once."""

import pytest
import torch

from megatron_core.data_parallel.gradient_lane import CopyingLane
from megatron_core.data_parallel.gradient_pool import GradientPool
from megatron_core.parallel.collectives import DONE

CPU = torch.device("cpu")


def test_the_device_lends_two_buckets() -> None:
    pool, targets = GradientPool(4, 2, torch.bfloat16, CPU), [torch.zeros(2) for _ in range(6)]
    lanes = []
    for number, target in enumerate(targets):
        lane = pool.take()
        lane.memory.fill_(number)
        lane.send(lane.memory[:2], target, DONE, add=False)
        pool.give_back(lane)
        lanes.append(id(lane))
    pool.finish()
    assert len(set(lanes)) == 2 and lanes[0::2] == lanes[:1] * 3, "they take turns"
    assert [target.tolist() for target in targets] == [[number] * 2 for number in range(6)]
    assert [memory.nbytes for memory in pool.memory] == [8, 8]


def test_whoever_finds_all_open_gets_another() -> None:
    pool = GradientPool(4, 4, torch.float32, CPU)
    lanes = [pool.take() for _ in range(3)]
    assert len({id(lane) for lane in lanes}) == 3 and len(pool.memory) == 3
    lanes[1].send(lanes[1].memory, torch.zeros(4), DONE, add=False)
    pool.give_back(lanes[1])
    assert pool.take() is lanes[1], "the one that was sent, since the others are open"
    assert len(pool.memory) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    size, device = 2**20, torch.device("cuda")
    pool, target = GradientPool(size, size // 2, torch.float32, device), torch.empty(size // 2)
    for number in range(20):
        lane = pool.take()
        assert isinstance(lane, CopyingLane)
        lane.memory.zero_().add_(number)
        lane.send(lane.memory[size // 2 :], target, DONE, add=number > 0)
        pool.give_back(lane)
    pool.finish()
    assert target.eq(sum(range(20))).all()
