# SPDX-License-Identifier: Apache-2.0
"""Order, errors and deaths of worker processes."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator

import pytest

from megatron_core.data.ordered_workers import map_in_order
from megatron_core.errors import DataError


def act(item: int) -> tuple[int, bytes]:
    """Odd items take longer; 77 is refused, 88 kills, 99 is a bug."""
    time.sleep(0.002 * (item % 2))
    if item == 77:
        raise DataError("seventy-seven")
    if item == 88:
        os.kill(os.getpid(), signal.SIGKILL)
    assert item != 99
    return item, bytes(300_000)


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    before = set(multiprocessing.active_children())  # of other tests: the pool of ranks
    yield
    assert set(multiprocessing.active_children()) <= before


def test_results_come_in_order_and_larger_than_a_pipe() -> None:
    assert [number for number, _ in map_in_order(act, range(40), 3)] == list(range(40))
    assert [number for number, _ in map_in_order(act, range(2), 3)] == [0, 1]
    assert list(map_in_order(act, [], 2)) == []


@pytest.mark.parametrize(("item", "message"), [(77, "seventy-seven"), (88, "fewer --workers"), (99, "fewer --workers")])
def test_failures_end_the_work(item: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(map_in_order(act, [*range(9), item, *range(9)], 2))


def test_stopping_early_ends_the_workers() -> None:
    results = map_in_order(act, range(10**9), 2)
    assert next(results)[0] == 0
    results.close()  # type: ignore[attr-defined]
