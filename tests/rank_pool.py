# SPDX-License-Identifier: Apache-2.0
"""Tests on many ranks: a pool of live gloo processes, started once a session and only as many as some test needs.

    @ranks(4, tp=2)                          def test_x(ctx): ...            one test on tp 2 x dp 2
    @ranks({"tp": 2}, {"tp": 2, "pp": 2})    def test_x(ctx, case): ...      one test a layout
    results = run_ranks(function, 4, x)      function(rank, world_size, x)   any number of times inside a test

A rank that raises, dies or never returns fails the test with every rank's traceback or stack; its pool is rebuilt.
"""

import functools
import inspect
import multiprocessing
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from tests.rank_worker import STACK_SIGNAL, Call, Reply, serve

DEFAULT_TIMEOUT = 60.0
_GRACE = 2.0  # seconds that ranks get to fail by themselves after the first one did
# One process is forked for all of a session: whoever needs it first has it import this.
PRELOAD = ("torch", "pytest", "hypothesis", "tests.rank_worker", "megatron_core.training.pretrain")


class RanksFailedError(AssertionError):
    """Some rank did not return; the message holds what is known of each."""


@dataclass(frozen=True)
class _Worker:
    process: ForkServerProcess
    connection: Connection


class RankPool:
    """Live ranks 0 .. n-1, n growing on demand."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOAD))
        self._folder = Path(tempfile.mkdtemp(prefix="rank_pool_"))
        self._workers: list[_Worker] = []
        self._calls = 0

    def run(self, function: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
        """Results of function(rank, world_size, *args, **kwargs), one a rank in rank order.

        The function must be reachable by name in its module; arguments and results travel as plain pickles. The
        default process group (gloo) is ready when it starts.
        """
        return self.call(function, world_size, args, kwargs)

    def call(
        self,
        function: Callable[..., Any],
        world_size: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        layout: dict[str, int] | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> list[Any]:
        """`run` with a timeout in seconds and, given a layout, a ParallelContext as the function's first argument."""
        __tracebackhide__ = True
        self._grow(world_size)
        self._calls += 1
        file = inspect.getsourcefile(inspect.unwrap(function))
        assert file is not None, f"{function} comes from no file"
        arguments = pickle.dumps((tuple(args), dict(kwargs or {})))
        for rank, worker in enumerate(self._workers[:world_size]):
            call = Call(
                module=function.__module__,
                file=str(Path(file).resolve()),
                function=function.__qualname__,
                rank=rank,
                world_size=world_size,
                store=str(self._folder / f"store{self._calls}"),
                timeout=timeout,
                layout=layout,
                arguments=arguments,
            )
            worker.connection.send_bytes(pickle.dumps(call))
        return self._collect(world_size, timeout)

    def close(self) -> None:
        """Kill all ranks and forget their files."""
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _grow(self, world_size: int) -> None:
        self._folder.mkdir(exist_ok=True)
        for index in range(len(self._workers), world_size):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=serve, args=(theirs, str(self._folder), index), daemon=True)
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def _collect(self, world_size: int, timeout: float) -> list[Any]:
        __tracebackhide__ = True
        waiting = {worker.connection: rank for rank, worker in enumerate(self._workers[:world_size])}
        results: list[Any] = [None] * world_size
        failures: dict[int, str] = {}
        deadline = time.monotonic() + timeout
        while waiting and (ready := wait(list(waiting), max(deadline - time.monotonic(), 0.0))):
            for connection in ready:
                assert isinstance(connection, Connection), "only connections are waited for"
                rank = waiting.pop(connection)
                reply = self._receive(rank)
                if reply.result is not None:
                    results[rank] = pickle.loads(reply.result)
                    continue
                failures[rank] = reply.error or ""
                deadline = min(deadline, time.monotonic() + _GRACE)
        if failures or waiting:
            self._fail(world_size, timeout, failures, list(waiting.values()))
        for worker in self._workers[:world_size]:
            worker.connection.send_bytes(b"")
        return results

    def _receive(self, rank: int) -> Reply:
        worker = self._workers[rank]
        try:
            reply: Reply = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            worker.process.join(5)
            return Reply(
                None, f"the process died with exit code {worker.process.exitcode}\n{self._text(rank, 'stacks')}"
            )
        return reply

    def _fail(self, world_size: int, timeout: float, failures: dict[int, str], unfinished: list[int]) -> None:
        __tracebackhide__ = True
        parts = [f"rank {rank} of {world_size} failed:\n{text}" for rank, text in failures.items()]
        why = "when another rank failed" if failures else f"after {timeout:g} s"
        parts += [
            f"rank {rank} of {world_size} had not finished {why}:\n{stack}"
            for rank, stack in zip(unfinished, self._stacks(unfinished))
        ]
        for rank in range(world_size):
            if output := self._text(rank, "log"):
                parts.append(f"output of rank {rank} so far:\n{output[-2000:]}")
        self._kill()
        raise RanksFailedError("\n\n".join(parts))

    def _stacks(self, unfinished: list[int]) -> list[str]:
        for rank in unfinished:
            process = self._workers[rank].process
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, STACK_SIGNAL)
        time.sleep(0.3 if unfinished else 0.0)
        return [self._text(rank, "stacks") for rank in unfinished]

    def _text(self, rank: int, suffix: str) -> str:
        path = self._folder / f"{rank}.{suffix}"
        return path.read_text(errors="replace") if path.exists() else ""

    def _kill(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join(5)
            worker.connection.close()
        self._workers = []
        for path in self._folder.glob("*"):
            path.unlink(missing_ok=True)


@functools.cache
def session_pool() -> RankPool:
    """The pool that all tests of this process share; no rank is started before the first call."""
    return RankPool()


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, **kwargs: Any) -> list[Any]:
    """`RankPool.run` on the session's pool."""
    __tracebackhide__ = True
    return session_pool().run(function, world_size, *args, **kwargs)


def _layout(size: int | Mapping[str, int], common: Mapping[str, int]) -> dict[str, int]:
    layout = dict(common) | ({} if isinstance(size, int) else dict(size))
    if isinstance(size, int) and "dp" not in layout:
        layout["dp"] = size // _world_size(layout)
    assert not isinstance(size, int) or _world_size(layout) == size, f"{layout} does not make {size} ranks"
    return layout


def _world_size(layout: Mapping[str, int]) -> int:
    size = 1
    for axis in ("tp", "cp", "dp", "pp"):
        size *= layout.get(axis, 1)
    return size


def _name(layout: Mapping[str, int]) -> str:
    return "-".join(f"{axis}{size}" for axis, size in layout.items() if size > 1) or "alone"


def ranks(
    *sizes: int | Mapping[str, int], timeout: float = DEFAULT_TIMEOUT, **common: int
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Turn a function of a ParallelContext into a test on that many ranks, or on several layouts in turn.

    A number of ranks is filled up with dp; a mapping, like the keywords, names axis sizes and kv_replicas. Fixtures and
    parameters that the function takes after `ctx` must be plain data.
    """
    layouts = [_layout(size, common) for size in sizes] or [dict(common)]

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(body)
        def test(layout: dict[str, int], **arguments: Any) -> None:
            __tracebackhide__ = True
            session_pool().call(body, _world_size(layout), (), arguments, layout=layout, timeout=timeout)

        taken = list(inspect.signature(body).parameters.values())[1:]
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in taken]
        layout = inspect.Parameter("layout", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([layout, *keyword])  # type: ignore[attr-defined]
        test.rank_body = body  # type: ignore[attr-defined]
        return pytest.mark.parametrize("layout", layouts, ids=_name)(test)

    return decorate
