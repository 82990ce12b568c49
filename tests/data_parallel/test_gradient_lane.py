# SPDX-License-Identifier: Apache-2.0
"""Gradients arrive once, added or in place of what was there, however late reductions, copies and the host are."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from megatron_core.data_parallel.gradient_lane import CopyingLane, DirectLane, Lane
from megatron_core.parallel.collectives import DONE
from tests.fake_copies import Early, Late


class LateReduction:
    """Doubles `values` when somebody waits for it."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values: torch.Tensor | None = values

    def wait(self) -> None:
        if self._values is not None:
            self._values.mul_(2)
            self._values = None

    def is_completed(self) -> bool:
        return self._values is None


class LateHost(Executor):
    """Does its tasks in order, when somebody wants the result of one."""

    def __init__(self) -> None:
        self._tasks: list[tuple[_Late, Callable[[], Any]]] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # type: ignore[override]
        future = _Late(self)
        self._tasks.append((future, lambda: function(*args, **kwargs)))
        return future

    def work_until(self, future: "_Late") -> None:
        while not future.done():
            first, task = self._tasks.pop(0)
            first.set_result(task())


class _Late(Future[Any]):
    def __init__(self, host: LateHost) -> None:
        super().__init__()
        self._host = host

    def result(self, timeout: float | None = None) -> Any:
        self._host.work_until(self)
        return super().result(timeout)


def _lane(kind: str) -> Lane:
    memory = torch.full((4,), torch.nan)
    if kind == "direct":
        return DirectLane(memory)
    copies = Late() if "late copies" in kind else Early("down", [])
    host = LateHost() if "late host" in kind else ThreadPoolExecutor(1)
    return CopyingLane(memory, torch.full((3,), torch.nan), copies, host)


KINDS = ["direct", "copying", "late copies", "late host", "late copies, late host"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_arrives(kind: str) -> None:
    """Three buckets through one lane: a sum of two in one accumulator, a part of the third in another."""
    lane, first, second = _lane(kind), torch.full((3,), torch.nan), torch.full((2,), torch.nan)
    for number, (target, add) in enumerate([(first, False), (first, True), (second, False)]):
        lane.vacate()
        lane.memory.fill_(number + 1.0)
        source = lane.memory[1 : 1 + len(target)]
        lane.send(source, target, LateReduction(lane.memory), add=add)
    lane.finish()
    lane.finish()
    assert first.tolist() == [2 * 1.0 + 2 * 2.0] * 3 and second.tolist() == [2 * 3.0] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_accumulator_may_be_wider(kind: str) -> None:
    lane, target = _lane(kind), torch.zeros(3, dtype=torch.float64)
    lane.memory.fill_(0.5)
    lane.send(lane.memory[:3], target, DONE, add=True)
    lane.finish()
    assert target.tolist() == [0.5] * 3


def test_nobody_waits_for_a_reduction_before_the_memory_is_wanted() -> None:
    lane, target = DirectLane(torch.ones(3)), torch.zeros(3)
    work = LateReduction(lane.memory)
    lane.send(lane.memory, target, work, add=False)
    assert not work.is_completed() and not target.any()
    lane.vacate()
    assert work.is_completed() and target.tolist() == [2.0] * 3


def test_a_lane_waits_for_the_host_only_where_its_staging_is_still_full() -> None:
    host = LateHost()
    lane = CopyingLane(torch.ones(3), torch.zeros(3), Early("down", []), host)
    targets = [torch.zeros(3), torch.zeros(3)]
    lane.send(lane.memory, targets[0], DONE, add=False)
    lane.vacate()
    assert not targets[0].any(), "the host is late, and nobody needs it yet"
    lane.memory.fill_(2.0)
    lane.send(lane.memory, targets[1], DONE, add=False)
    assert targets[0].tolist() == [1.0] * 3 and not targets[1].any()
    lane.finish()
    assert targets[1].tolist() == [2.0] * 3


def test_what_goes_wrong_on_the_host_is_raised() -> None:
    with ThreadPoolExecutor(1) as host:
        lane = CopyingLane(torch.ones(3), torch.zeros(3), Early("down", []), host)
        lane.send(lane.memory, torch.zeros(2), DONE, add=True)
        with pytest.raises(RuntimeError, match="size of tensor"):
            lane.finish()
