# SPDX-License-Identifier: Apache-2.0
"""The log alone with a clock by hand, and what each collective of two or more ranks writes to it."""

import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from megatron_core.parallel import collectives as c
from megatron_core.parallel.collective_log import Call, CollectiveLog
from megatron_core.parallel.context import ParallelContext, single_process_context
from tests.rank_pool import ranks


class Clock:
    """Shows what it was set to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_call_is_inside_until_it_is_left(clock: Clock) -> None:
    log = CollectiveLog(now=clock)
    assert log.snapshot().inside is None and log.snapshot().last is None
    call = log.begin("all_reduce", "dp", (0, 1))
    assert call == Call("all_reduce", "dp", "dp", 1, (0, 1))
    clock.seconds += 3
    snapshot = log.snapshot()
    assert (snapshot.inside, snapshot.inside_s, snapshot.last, snapshot.counts) == (call, 3.0, None, {"dp": 1})
    log.leave()
    clock.seconds += 4
    snapshot = log.snapshot()
    assert (snapshot.inside, snapshot.inside_s, snapshot.last, snapshot.last_s) == (None, 0.0, call, 4.0)


def test_channels_are_counted_apart_and_seconds_by_group(clock: Clock) -> None:
    log = CollectiveLog(now=clock)
    for group, channel, seconds in (("dp", None, 1), ("pp", "pp 0>1", 2), ("dp", None, 4), ("pp", "pp 1>0", 8)):
        log.begin("x", group, (0, 1), channel)
        clock.seconds += seconds
        log.leave()
        clock.seconds += 1000
    assert log.snapshot().counts == {"dp": 2, "pp 0>1": 1, "pp 1>0": 1}
    assert log.blocked_s() == {"dp": 5.0, "pp": 10.0}


def test_waiting_later_adds_to_the_seconds_and_not_to_the_count(clock: Clock) -> None:
    log = CollectiveLog(now=clock)
    call = log.begin("all_reduce", "dp", (0, 1))
    log.leave()
    clock.seconds += 50
    log.enter(call)
    clock.seconds += 2
    assert log.snapshot().inside_s == 2.0
    log.leave()
    assert log.snapshot().counts == {"dp": 1} and log.blocked_s() == {"dp": 2.0}


def test_what_was_read_does_not_change_later(clock: Clock) -> None:
    log = CollectiveLog(now=clock)
    log.begin("x", "dp", (0, 1))
    log.leave()
    counts, seconds = log.snapshot().counts, log.blocked_s()
    log.begin("x", "dp", (0, 1))
    clock.seconds += 1
    log.leave()
    assert counts == {"dp": 1} and seconds == {"dp": 0.0}


class Stream:
    """A device that does what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.marks, self.done = 0, 0

    def mark(self) -> "Position":
        self.marks += 1
        return Position(self, self.marks)


class Position:
    """A mark of a Stream."""

    def __init__(self, stream: Stream, number: int) -> None:
        self._stream, self._number = stream, number

    def query(self) -> bool:
        return self._stream.done >= self._number


def test_on_a_device_the_first_unfinished_call_is_the_one_it_is_in(clock: Clock) -> None:
    stream = Stream()
    log = CollectiveLog(mark=stream.mark, now=clock)
    calls = []
    for group in ("tp", "tp", "dp", "tp"):
        calls.append(log.begin("all_reduce", group, (0, 1)))
        log.leave()
    stream.done = 1
    assert log.snapshot().inside == calls[1] and log.snapshot().counts == {"tp": 2, "dp": 0}
    clock.seconds += 5
    assert log.snapshot().inside_s == 5.0
    stream.done = 3
    assert (log.snapshot().inside, log.snapshot().inside_s) == (calls[3], 0.0)
    stream.done = 4
    assert log.snapshot().inside is None and log.snapshot().counts == {"tp": 3, "dp": 1}


def test_on_a_device_a_call_has_begun_though_its_wait_is_still_queued(clock: Clock) -> None:
    stream = Stream()
    log = CollectiveLog(mark=stream.mark, now=clock)
    started = log.begin("all_reduce", "dp", (0, 1))
    log.leave()
    between = log.begin("all_gather", "tp", (0, 1))
    log.leave()
    log.enter(started)
    log.leave()
    stream.done = 1
    assert log.snapshot().inside == between and log.snapshot().counts == {"dp": 1, "tp": 1}
    stream.done = 2
    assert log.snapshot().inside == started


def test_a_blocked_host_comes_before_its_device(clock: Clock) -> None:
    log = CollectiveLog(mark=Stream().mark, now=clock)
    log.begin("all_reduce", "dp", (0, 1))
    log.leave()
    blocked = log.begin("all_reduce", "pp", (0, 1))
    clock.seconds += 2
    assert (log.snapshot().inside, log.snapshot().inside_s) == (blocked, 2.0)


def test_leaving_what_was_not_entered_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="had not been entered"):
        CollectiveLog().leave()


def test_alone_nothing_is_recorded() -> None:
    ctx = single_process_context()
    c.all_reduce(torch.ones(1), ctx.dp)
    c.all_gather(torch.ones(1), ctx.tp)
    c.barrier(ctx.world)
    assert ctx.tp.log is ctx.log
    assert ctx.log.snapshot().counts == {} and ctx.log.blocked_s() == {}


@ranks(2)
def test_every_collective_is_recorded(ctx: ParallelContext) -> None:
    group, x = ctx.world, torch.ones(2, 1)
    assert all(each.log is ctx.log for each in ctx.groups.values())
    calls: list[tuple[str, Callable[[], object]]] = [
        ("all_reduce", lambda: c.all_reduce(x, group)),
        ("all_reduce", lambda: c.all_reduce_async(x, group).wait()),
        ("all_gather", lambda: c.all_gather(x, group)),
        ("reduce_scatter", lambda: c.reduce_scatter(x, group)),
        ("broadcast", lambda: c.broadcast(x, group)),
        ("barrier", lambda: c.barrier(group)),
    ]
    for number, (op, call) in enumerate(calls, start=1):
        call()
        snapshot = ctx.log.snapshot()
        assert snapshot.inside is None
        assert snapshot.last == Call(op, "world", "world", number, (0, 1))
    c.all_reduce(x, ctx.dp)
    assert ctx.log.snapshot().counts == {"world": len(calls), "dp": 1}


@ranks(4, tp=2, pp=2)
def test_transfers_are_counted_by_source_and_destination(ctx: ParallelContext) -> None:
    peer = 1 - ctx.pp.coordinate
    mine, other = ctx.rank, ctx.pp.ranks[peer]
    for number in (1, 2):
        inbox = torch.empty(1)
        sent, received = c.exchange_async([(True, peer, torch.ones(1)), (False, peer, inbox)], ctx.pp)
        assert ctx.log.snapshot().inside is None, "what was started is not waited for yet"
        received.wait()
        assert ctx.log.snapshot().last == Call("receive", "pp", f"pp {other}>{mine}", number, (other, mine))
        sent.wait()
    assert ctx.log.snapshot().counts == {f"pp {mine}>{other}": 2, f"pp {other}>{mine}": 2}


@ranks(2)
def test_another_thread_sees_a_rank_wait_and_its_seconds_count(ctx: ParallelContext) -> None:
    """Rank 1 comes only once rank 0's log says that it has been waiting for it."""
    store = dist.distributed_c10d._get_default_store()
    before = ctx.log.blocked_s()
    if ctx.rank == 0:
        watcher = threading.Thread(target=_tell_when_waiting, args=(ctx, store.clone()))
        watcher.start()
    else:
        store.wait(["rank 0 waits"])
    c.all_reduce(torch.ones(1), ctx.world)
    if ctx.rank == 0:
        watcher.join()
        assert ctx.log.blocked_s()["world"] - before.get("world", 0.0) >= 0.05


def _tell_when_waiting(ctx: ParallelContext, store: dist.Store) -> None:
    while ctx.log.snapshot().inside_s < 0.05:
        time.sleep(0.01)
    store.set("rank 0 waits", "")


@ranks(2)
def test_a_call_that_failed_stays_in_the_log(ctx: ParallelContext) -> None:
    c.barrier(ctx.world)
    with pytest.raises(RuntimeError, match="invalid root rank"):
        c.broadcast(torch.ones(1), _without_handle(ctx), source=0)
    inside = ctx.log.snapshot().inside
    assert inside is not None and (inside.op, inside.channel, inside.number) == ("broadcast", "odd", 1)


def _without_handle(ctx: ParallelContext) -> c.Group:
    """A group whose ranks are not those of its communicator."""
    return c.Group("odd", (7, 8), 0, ctx.world.handle, ctx.log)
