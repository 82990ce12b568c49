# SPDX-License-Identifier: Apache-2.0
"""The queue with marks set by hand, and on a GPU where there is one."""

import pytest
import torch

from megatron_core.parallel.device_queue import DeviceQueue, cuda_mark


class Flag:
    """A mark that is passed when told so."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed


def test_items_leave_in_order_and_seconds_count_from_the_first_look() -> None:
    flags, time = [Flag(), Flag(), Flag()], [10.0]
    marks = iter(flags)
    queue = DeviceQueue[str](lambda: next(marks), now=lambda: time[0])
    assert queue.unfinished() == ([], 0.0)
    queue.put("a")
    queue.put("b")
    time[0] = 20.0
    assert queue.unfinished() == (["a", "b"], 0.0)
    time[0] = 23.0
    assert queue.unfinished() == (["a", "b"], 3.0)
    flags[0].passed = True
    assert queue.unfinished() == (["b"], 0.0)
    queue.put("c")
    assert queue.unfinished() == (["b", "c"], 0.0)
    flags[1].passed = flags[2].passed = True
    assert queue.unfinished()[0] == []


def test_what_is_finished_is_forgotten() -> None:
    made: list[Flag] = []

    def mark() -> Flag:
        made.append(Flag())
        return made[-1]

    queue = DeviceQueue[int](mark)
    for number in range(100):
        queue.put(number)
        made[-1].passed = True
    assert len(queue._items) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_mark_is_passed_when_the_device_comes_to_it() -> None:
    torch.cuda._sleep(200_000_000)
    mark = cuda_mark()
    assert not mark.query()
    torch.cuda.synchronize()
    assert mark.query()
