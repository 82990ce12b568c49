# SPDX-License-Identifier: Apache-2.0
"""Maps a function over large items in worker processes, in order and in bounded memory.

Item i goes to worker i modulo N through a pipe of its own, and the results are collected in the same turn. A worker
that is killed, for lack of memory say, closes its pipe, which is noticed at once; the executor of the standard library
shares one queue among its workers, and can wait for ever when one dies while it holds the queue's lock.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from megatron_core.errors import DataError, UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Results in the order of the items, of which each worker has one at a time. `function` must be picklable.

    Raises the UserErrors of `function`, and DataError when a worker ends before its time.
    """
    # Spawned, not forked: the encoders have threads of their own.
    context = multiprocessing.get_context("spawn")
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for _ in range(workers):
            mine, theirs = context.Pipe()
            process = context.Process(target=_work, args=(function, theirs), daemon=True)
            process.start()
            theirs.close()
            crew.append((process, mine))
        yield from _in_turn(items, [pipe for _, pipe in crew])
    except (EOFError, ConnectionError) as error:
        raise DataError("a worker process ended suddenly, perhaps for lack of memory; use fewer --workers") from error
    finally:
        for member, pipe in crew:
            pipe.close()
            member.terminate()
        for member, _ in crew:
            member.join()


def _in_turn(items: Iterable[Item], pipes: list[Connection]) -> Iterator[Result]:
    sent = 0
    for item in items:
        pipe = pipes[sent % len(pipes)]
        if sent >= len(pipes):
            yield _result(pipe)
        pipe.send(item)
        sent += 1
    for number in range(max(sent - len(pipes), 0), sent):
        yield _result(pipes[number % len(pipes)])


def _result(pipe: Connection) -> Any:
    result = pipe.recv()
    if isinstance(result, UserError):
        raise result
    return result


def _work(function: Callable[[Item], Result], pipe: Connection) -> None:
    """Loop of a worker. Ctrl-C is the business of the parent, whose end is noticed by the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(function(item))
        except UserError as error:
            pipe.send(error)
        except BrokenPipeError:
            return
