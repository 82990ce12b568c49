# SPDX-License-Identifier: Apache-2.0
"""What each rank tells rank 0 about its part of one save, over a store: background threads must not use collectives."""

import datetime
import threading
import time

import torch.distributed as dist

from megatron_core.checkpoint.manifest import RankFile
from megatron_core.checkpoint.manifest_json import decode_rank_file, encode_rank_file
from megatron_core.errors import CheckpointError

_WROTE, _FAILED = "+", "-"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.2


class Reports:
    """One report a rank, then all of them on rank 0. For one thread at a time."""

    def __init__(self, store: dist.Store, save: str, world_size: int) -> None:
        """`save`: a word that no other save of this store has, the same on all ranks."""
        self._store = store
        self._keys = [f"checkpoint/{save}/{rank}" for rank in range(world_size)]

    def wrote(self, rank: int, written: RankFile) -> None:
        """This rank's file is on the disk."""
        self._store.set(self._keys[rank], _WROTE + encode_rank_file(written).decode())

    def failed(self, rank: int, reason: str) -> None:
        """This rank's file is not."""
        self._store.set(self._keys[rank], _FAILED + reason)

    def collect(self, left: threading.Event) -> list[RankFile]:
        """What all ranks wrote; waits for them, at most as long as the store itself would.

        Raises CheckpointError where a rank failed or did not report, and where `left` is set: nobody waits any more.
        """
        silent = self._wait(left)
        found = {rank: self._take(key) for rank, key in enumerate(self._keys) if rank not in silent}
        failures = [(rank, text[1:]) for rank, text in found.items() if text[:1] == _FAILED]
        failures += [(rank, f"has not written its file after {self._patience:g} s") for rank in silent]
        if failures:
            raise CheckpointError(_describe(failures, len(self._keys)))
        return [decode_rank_file(text[1:].encode()) for text in found.values()]

    @property
    def _patience(self) -> float:
        patience: datetime.timedelta = self._store.timeout  # type: ignore[attr-defined]  # torch's stubs lack it
        return patience.total_seconds()

    def _wait(self, left: threading.Event) -> list[int]:
        """Ranks that did not report in time."""
        deadline = time.monotonic() + self._patience
        pause = _FIRST_WAIT_S
        # Not `wait`: a store of many clients logs each wait that runs out, and cannot be told to leave.
        while not self._store.check(self._keys):
            if left.wait(pause):
                raise CheckpointError("the run ended before all ranks had written their files")
            if time.monotonic() > deadline:
                return [rank for rank, key in enumerate(self._keys) if not self._store.check([key])]
            pause = min(2 * pause, _LONGEST_WAIT_S)
        return []

    def _take(self, key: str) -> str:
        text = self._store.get(key).decode()
        self._store.delete_key(key)
        return text


def _describe(failures: list[tuple[int, str]], world_size: int) -> str:
    """The first reason; a full disk has the same one for all."""
    rank, reason = min(failures)
    if world_size == 1:
        return reason
    others = f" ({len(failures) - 1} more ranks failed)" if len(failures) > 1 else ""
    return f"[rank {rank}] {reason}{others}"
