# SPDX-License-Identifier: Apache-2.0
"""Makes sure that ranks which meet in a store are those of one start of the job.

torchrun keeps one store for all starts: what ranks of an earlier one have left there, the addresses of dead processes
among it, must not be taken for the present. Counting starts does not tell them apart, as agents of different nodes
count differently. So every rank draws a word, rank 0 writes down the words that it sees, and a rank goes on only with
a list that has its own.
"""

import json
import secrets
import time

import torch.distributed as dist

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5


def meet(store: dist.Store, rank: int, world_size: int, timeout_s: float) -> str:
    """A word that all ranks of this start return, and none before. Raises TimeoutError where some do not come."""
    own = secrets.token_hex(4)
    store.set(f"hello/{rank}", own)
    deadline = time.monotonic() + timeout_s
    pause = _FIRST_PAUSE_S
    host = _Host(store, world_size) if rank == 0 else None
    while True:
        if host is not None:
            host.look()
        if (meeting := _joined(store, rank, own)) is not None:
            return meeting
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all {world_size} ranks came within {timeout_s:g} s")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class _Host:
    """What rank 0 does for the others: a list of the words, anew whenever a word has changed, until all agree."""

    def __init__(self, store: dist.Store, world_size: int) -> None:
        self._store, self._ranks = store, range(world_size)
        self._words: list[str] = []
        self._meeting = ""

    def look(self) -> None:
        """Read the words there are; let the meeting begin once everybody has found its own."""
        hellos = [f"hello/{rank}" for rank in self._ranks]
        if not self._store.check(hellos):
            return
        words = [self._store.get(key).decode() for key in hellos]
        if words != self._words:
            self._words, self._meeting = words, secrets.token_hex(8)
            self._store.set("list", json.dumps([self._meeting, words]))
        elif self._store.check([f"{self._meeting}/{rank}" for rank in self._ranks]):
            self._store.set(f"{self._meeting}/begins", "")


def _joined(store: dist.Store, rank: int, own: str) -> str | None:
    """The meeting that this rank is in, once it begins."""
    if not store.check(["list"]):
        return None
    meeting, words = json.loads(store.get("list"))
    if len(words) <= rank or words[rank] != own:
        return None
    store.set(f"{meeting}/{rank}", "")
    begins: bool = store.check([f"{meeting}/begins"])
    return str(meeting) if begins else None
