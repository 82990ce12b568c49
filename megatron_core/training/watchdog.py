# SPDX-License-Identifier: Apache-2.0
"""Ends a job in which a rank hangs or died, and says before it goes who waits for whom.

Python's signal handlers do not run inside a blocked collective, hence threads. One guards: it looks at this rank's log
of collectives alone, so that nothing remote can hold it up, and ends the process in time whatever others do. The other
talks: it asks the store whether another rank has found the job stuck, and exchanges what is known. A store that is gone
(as at the regular end of the rank that serves it) is no reason to stop; it only leaves the guard without company.

Every part of `timeout_s` has its use: a rank that is in one collective for 0.7 of it calls the others, who notice at
their next look; they answer and read within a quarter, and so all are gone before gloo's or NCCL's own limit, which is
the same number. A rank that computes, reads or saves for long is in no collective and calls nobody.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable

import torch.distributed as dist

from megatron_core.parallel.collective_log import CollectiveLog
from megatron_core.training.hang_exchange import exchange, hang_was_announced
from megatron_core.training.hang_report import Standing, describe

EXIT_HANG = 1
_PATIENCE = 0.7
"""Part of the timeout that a rank may spend in one collective."""
_LOOKS, _SHORTEST_LOOK_S, _LONGEST_LOOK_S = 20, 0.2, 10.0
_SHORTEST_GRACE_S, _LONGEST_GRACE_S = 0.5, 5.0


class Watchdog:
    """Watches one rank of a job of several; alone it does nothing."""

    def __init__(
        self,
        log: CollectiveLog,
        store: dist.Store,
        *,
        rank: int,
        world_size: int,
        timeout_s: float,
        on_hang: Callable[[str], None],
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        """Start watching. `store`: that of the process group; the watchdog takes a connection of its own.

        `on_hang` gets what was found, before `leave` ends the process: the main thread is stuck and cannot.
        """
        self._log, self._rank, self._world_size = log, rank, world_size
        self._timeout_s, self._on_hang, self._leave = timeout_s, on_hang, leave
        self._look_s = min(max(timeout_s / _LOOKS, _SHORTEST_LOOK_S), _LONGEST_LOOK_S)
        self._grace_s = max(self._look_s + min(timeout_s / _LOOKS, _LONGEST_GRACE_S), _SHORTEST_GRACE_S)
        self._last_s = max(0.25 * timeout_s, 2.5 * self._grace_s)
        self._error: str | None = None
        self._standing: Standing | None = None
        self._findings: list[str] = []
        self._alone_because = "the store does not answer"
        self._stuck, self._ask, self._told = threading.Event(), threading.Event(), threading.Event()
        self._reported, self._closed = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []
        if world_size > 1:
            own = store.clone()  # type: ignore[attr-defined]
            self._threads = [
                threading.Thread(target=self._guard, name="watchdog guard", daemon=True),
                threading.Thread(target=self._talk, args=(own,), name="watchdog talk", daemon=True),
            ]
        for thread in self._threads:
            thread.start()

    def report_now(self, error: str) -> str:
        """Call the others and report, from the main thread when a collective raised because a peer died.

        Returns what was found, "" in a world of one, after the others had time to answer; the caller then exits with 1.
        Should it not, the watchdog ends the process.
        """
        if not self._threads:
            return ""
        self._error = error
        self._stuck.set()
        self._reported.wait()
        return "\n".join(self._findings)

    def close(self) -> None:
        """Stop watching, at the end of a run or once everything was reported."""
        self._closed.set()
        self._stuck.set()
        self._ask.set()
        if self._threads:
            guard, talker = self._threads
            guard.join()
            talker.join(self._look_s)  # no longer: a store that is stopped holds it until the process ends

    def _guard(self) -> None:
        while not self._stuck.wait(self._look_s):
            if self._log.snapshot().inside_s > _PATIENCE * self._timeout_s:
                break
        if self._closed.is_set():
            return
        leaves_by_itself = False
        try:
            self._report()
            self._reported.set()
            leaves_by_itself = self._error is not None and self._closed.wait(self._last_s)
            if not leaves_by_itself:
                self._on_hang("\n".join(self._findings))
        finally:
            if not leaves_by_itself:
                self._leave(EXIT_HANG)

    def _report(self) -> None:
        """Stacks at once, then what the others say, or for want of them what this rank knows alone."""
        self._standing = Standing(snapshot=self._log.snapshot(), error=self._error)
        own = describe(self._rank, self._standing)
        self._say(f"{own}\n{_stacks()}")
        self._ask.set()
        if not self._told.wait(self._last_s) or not self._findings:
            self._tell(f"{own}; nothing is known of the others: {self._alone_because}")

    def _talk(self, store: dist.Store) -> None:
        try:
            while not self._ask.wait(self._look_s):
                if hang_was_announced(store):
                    self._stuck.set()
                    self._ask.wait()
            if self._standing is not None:
                exchange(store, self._rank, self._world_size, self._standing, grace_s=self._grace_s, tell=self._tell)
        except RuntimeError as error:
            self._alone_because = f"the store is gone ({error})"
        finally:
            self._told.set()

    def _tell(self, text: str) -> None:
        self._findings.append(text)
        self._say(text)

    def _say(self, text: str) -> None:
        sys.stderr.write("".join(f"[rank {self._rank}] {line}\n" for line in text.splitlines()))
        sys.stderr.flush()


def _stacks() -> str:
    """The Python stack of every thread but the watchdog's, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = [(names.get(ident, "?"), frame) for ident, frame in sys._current_frames().items()]
    return "\n".join(
        f"thread {name}:\n{''.join(traceback.format_stack(frame))}"
        for name, frame in frames
        if not name.startswith("watchdog")
    )
