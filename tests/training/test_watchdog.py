# SPDX-License-Identifier: Apache-2.0
"""Two watchdogs of one process over a store in memory; then ranks that wait, stop and die for real."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist

from megatron_core.parallel import collectives as c
from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.watchdog import Watchdog
from tests.rank_pool import RankPool, RanksFailedError, ranks

TIMEOUT_S = 2.0


@dataclass
class Watched:
    """A rank whose watchdog, instead of ending the process, notes what it would have done."""

    log: CollectiveLog
    found: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)

    def leave(self, code: int) -> None:
        self.codes.append(code)
        self.left.set()

    def watch(self, store: dist.Store, rank: int, world_size: int, timeout_s: float = 1.0) -> Watchdog:
        return Watchdog(
            self.log,
            store,
            rank=rank,
            world_size=world_size,
            timeout_s=timeout_s,
            on_hang=self.found.append,
            leave=self.leave,
        )


class LostStore:
    """What is left of a store whose process is gone."""

    def clone(self) -> "LostStore":
        return self

    def check(self, keys: list[str]) -> bool:
        raise dist.DistNetworkError("Connection reset by peer")

    set = check


def test_a_rank_that_waits_too_long_calls_the_others(capfd: pytest.CaptureFixture[str]) -> None:
    store, waiting, computing = dist.HashStore(), Watched(CollectiveLog()), Watched(CollectiveLog())
    waiting.log.begin("all_reduce", "dp", (0, 1))
    dogs = [waiting.watch(store, 0, 2), computing.watch(store, 1, 2)]
    assert waiting.left.wait(60) and computing.left.wait(60)
    for dog in dogs:
        dog.close()
    assert waiting.codes == computing.codes == [1]
    sentence = "rank 0 waits in all_reduce #1 of group dp (ranks 0, 1) for "
    assert sentence in waiting.found[0]
    assert "; rank 1 is not in a collective (it has called none yet)" in waiting.found[0]
    assert "verdict: Others wait for rank 1: rank 1 is not in a collective" in waiting.found[0]
    assert computing.found == ["rank 1 is not in a collective (it has called none yet)"]
    errors = capfd.readouterr().err
    assert f"[rank 0] {sentence}" in errors and "[rank 0] verdict: " in errors
    for rank in (0, 1):
        assert f"[rank {rank}] thread MainThread:" in errors
    assert "test_a_rank_that_waits_too_long_calls_the_others" in errors
    assert "thread watchdog" not in errors


def test_a_rank_without_answer_is_named() -> None:
    store, waiting = dist.HashStore(), Watched(CollectiveLog())
    waiting.log.begin("barrier", "world", (0, 1, 2))
    dog = waiting.watch(store, 1, 3)
    assert waiting.left.wait(60)
    dog.close()
    assert "verdict: ranks 0, 2 did not answer: dead or stopped." in waiting.found[0]


def test_reporting_from_the_main_thread_tells_all_and_returns() -> None:
    store, failed, computing = dist.HashStore(), Watched(CollectiveLog()), Watched(CollectiveLog())
    failed.log.begin("all_reduce", "dp", (0, 1, 2))
    dogs = [failed.watch(store, 0, 3, 5.0), computing.watch(store, 1, 3)]
    text = dogs[0].report_now("Connection closed by peer")
    dogs[0].close()
    assert computing.left.wait(60)
    dogs[1].close()
    assert "rank 0 failed in all_reduce #1 of group dp (ranks 0, 1, 2): Connection closed by peer; " in text
    assert "verdict: rank 2 did not answer: dead or stopped." in text
    assert failed.codes == [] and failed.found == [], "the caller ends the process by itself"
    assert computing.codes == [1]


def test_a_caller_that_does_not_leave_after_its_report_is_ended() -> None:
    failed = Watched(CollectiveLog())
    dog = failed.watch(dist.HashStore(), 0, 2)
    text = dog.report_now("Connection closed by peer")
    assert failed.left.wait(60)
    dog.close()
    assert failed.codes == [1] and failed.found == [text]


def test_a_lost_store_stops_no_rank_that_computes_but_one_that_waits() -> None:
    rank = Watched(CollectiveLog())
    dog = rank.watch(LostStore(), 1, 2)  # type: ignore[arg-type]
    assert not rank.left.wait(0.5)
    rank.log.begin("all_reduce", "dp", (0, 1))
    assert rank.left.wait(60)
    dog.close()
    assert rank.found[0].startswith("rank 1 waits in all_reduce #1 of group dp (ranks 0, 1) for ")
    assert rank.found[0].endswith("; nothing is known of the others: the store is gone (Connection reset by peer)")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_process_ends_though_what_was_found_cannot_be_written() -> None:
    left = threading.Event()

    def on_hang(text: str) -> None:
        raise OSError(28, "No space left on device")

    log = CollectiveLog()
    log.begin("all_reduce", "dp", (0, 1))
    dog = Watchdog(
        log, dist.HashStore(), rank=0, world_size=2, timeout_s=0.1, on_hang=on_hang, leave=lambda code: left.set()
    )
    assert left.wait(60)
    dog.close()


def test_closed_it_notices_nothing_and_leaves_no_thread() -> None:
    before, rank, store = threading.active_count(), Watched(CollectiveLog()), dist.HashStore()
    dog = rank.watch(store, 0, 2, 0.1)
    dog.close()
    assert threading.active_count() == before
    rank.log.begin("all_reduce", "dp", (0, 1))
    assert rank.codes == [] and not store.check(["watchdog/hang"])


def test_alone_there_is_nothing_to_watch() -> None:
    before = threading.active_count()
    dog = Watched(CollectiveLog()).watch(dist.HashStore(), 0, 1)
    assert threading.active_count() == before
    assert dog.report_now("whatever") == ""
    dog.close()


@ranks(2, pp=2)
def test_ranks_that_wait_for_one_another_in_transfers(ctx: ParallelContext) -> None:
    """Both receive first. Once both have reported, each sends, so that the test ends."""
    peer, rank = 1 - ctx.rank, Watched(ctx.log)
    dog = rank.watch(dist.distributed_c10d._get_default_store(), ctx.rank, 2)
    helper = threading.Thread(target=_send_after, args=(ctx, rank.left))
    helper.start()
    (work,) = c.exchange_async([(False, peer, torch.empty(1))], ctx.pp)
    work.wait()
    helper.join()
    dog.close()
    own, other = (f"rank {r} waits in receive #1 of group pp ({1 - r} to {r}) for " for r in (ctx.rank, peer))
    assert own in rank.found[0] and other in rank.found[0]
    if ctx.rank == 0:
        assert "verdict: ranks 0, 1 wait for one another, in collectives that do not match: " in rank.found[0]


def _send_after(ctx: ParallelContext, event: threading.Event) -> None:
    event.wait()
    dist.send(torch.ones(1), 1 - ctx.rank, group=ctx.pp.handle)


@pytest.fixture
def pool() -> Iterator[RankPool]:
    """A pool of its own, since its ranks are lost."""
    pool = RankPool()
    yield pool
    pool.close()


def _watch_for_real(ctx: ParallelContext, store: dist.Store, timeout_s: float) -> Watchdog:
    return Watchdog(
        ctx.log, store, rank=ctx.rank, world_size=ctx.world.size, timeout_s=timeout_s, on_hang=lambda text: None
    )


def _stop_rank_1(ctx: ParallelContext) -> None:
    _watch_for_real(ctx, dist.distributed_c10d._get_default_store(), TIMEOUT_S)
    c.barrier(ctx.world)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif ctx.rank == 2:
        time.sleep(1000)
    c.all_reduce(torch.ones(1), ctx.world)


def _stop_the_rank_that_serves_the_store(ctx: ParallelContext) -> None:
    meeting = dist.distributed_c10d._get_default_store()
    if ctx.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        meeting.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(meeting.get("port")), None, False)
    _watch_for_real(ctx, store, TIMEOUT_S)
    c.barrier(ctx.world)
    if ctx.rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    c.all_reduce(torch.ones(1), ctx.world)


def _kill_rank_1(ctx: ParallelContext) -> None:
    dog = _watch_for_real(ctx, dist.distributed_c10d._get_default_store(), TIMEOUT_S)
    c.barrier(ctx.world)
    if ctx.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        c.all_reduce(torch.ones(1), ctx.world)
    except RuntimeError as error:
        dog.report_now(str(error))
        os._exit(1)


def _failure(pool: RankPool, body: Callable[[ParallelContext], None], world_size: int) -> str:
    with pytest.raises(RanksFailedError) as caught:
        pool.call(body, world_size, layout={"dp": world_size}, timeout=20.0)
    return str(caught.value)


def test_a_stopped_rank_ends_the_job_and_is_named(pool: RankPool) -> None:
    message = _failure(pool, _stop_rank_1, 3)
    for rank in (0, 2):
        assert f"rank {rank} of 3 failed:\nthe process died with exit code 1\n" in message
    assert "rank 1 of 3 had not finished" in message
    assert "[rank 0] rank 0 waits in all_reduce #1 of group world (ranks 0, 1, 2) for " not in message
    assert "[rank 0] rank 0 waits in all_reduce #2 of group world (ranks 0, 1, 2) for " in message
    assert "; rank 1 did not answer: dead or stopped; rank 2 is not in a collective (last: barrier #1 of" in message
    assert "[rank 0] verdict: rank 1 did not answer: dead or stopped. Others wait for rank 2: " in message
    assert "_stop_rank_1" in message.split("output of rank 2 so far:")[1]


def test_a_stopped_store_cannot_hold_up_the_end(pool: RankPool) -> None:
    message = _failure(pool, _stop_the_rank_that_serves_the_store, 2)
    assert "rank 1 of 2 failed:\nthe process died with exit code 1\n" in message
    assert "rank 1 waits in all_reduce #2 of group world (ranks 0, 1) for " in message
    assert "nothing is known of the others: the store does not answer" in message


def test_a_killed_rank_is_named_at_once(pool: RankPool) -> None:
    message = _failure(pool, _kill_rank_1, 3)
    assert "rank 1 of 3 failed:\nthe process died with exit code -9\n" in message
    for rank in (0, 2):
        assert f"rank {rank} of 3 failed:\nthe process died with exit code 1\n" in message
        assert f"[rank {rank}] rank {rank} failed in all_reduce #2 of group world (ranks 0, 1, 2): " in message
    assert "[rank 0] verdict: rank 1 did not answer: dead or stopped." in message
