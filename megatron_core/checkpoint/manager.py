# SPDX-License-Identifier: Apache-2.0
"""Saves a run's state: all ranks write at once, by default behind training, and rank 0 publishes what all have written.

A save:  rank 0 makes the directory → every rank copies its share (training waits for no more than that) → a thread on
each writes and synchronises its file and reports over the store → rank 0's thread publishes and lets old ones go.
Threads use no collectives. What fails on any rank fails the save, is said, and costs no older checkpoint.
"""

import contextlib
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from megatron_core.checkpoint.agree import from_rank_0
from megatron_core.checkpoint.dealt import dealt_shards
from megatron_core.checkpoint.directory import discard, prepare, publish, step_directory
from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.host_copy import HostCopy
from megatron_core.checkpoint.manifest import RankFile, merge
from megatron_core.checkpoint.old_checkpoints import OldCheckpoints
from megatron_core.checkpoint.read_back import read_back
from megatron_core.checkpoint.reports import Reports
from megatron_core.checkpoint.retention import Retention
from megatron_core.checkpoint.writer import Shard, rank_file_name, write_rank_file
from megatron_core.errors import CheckpointError
from megatron_core.parallel.context import ParallelContext

LOGGER = logging.getLogger("megatron_core")


@dataclass(frozen=True, kw_only=True)
class _Save:
    """One save under way, as one rank sees it."""

    step: int
    attempt: int
    word: str
    """Tells its reports from those of all other saves."""
    shards: Sequence[Shard]
    state: Mapping[str, Any]
    config: Mapping[str, Any]
    refused: str | None
    """Why this rank has nothing to write from, if it has not."""


class CheckpointManager:
    """The checkpoints that a run writes to one directory; all ranks make one, and call its methods together."""

    def __init__(
        self,
        root: Path,
        ctx: ParallelContext,
        store: dist.Store,
        *,
        retention: Retention,
        damaged: Collection[int] = (),
    ) -> None:
        """`store`: one that all ranks share. `damaged`: steps in `root` that proved damaged; never counted as kept."""
        self._root = root
        self._ctx = ctx
        # A connection for the thread, since others may wait on theirs; torch's stubs lack `clone`.
        self._store: dist.Store = store.clone()  # type: ignore[attr-defined]
        self._reads_back = retention.keep_last is not None
        self._old = OldCheckpoints(root, retention, damaged)
        self._host_copy = HostCopy(ctx.device)
        self._thread: threading.Thread | None = None
        self._left = threading.Event()
        self._failures: deque[str] = deque()
        self._last_published: int | None = None

    @property
    def last_published(self) -> int | None:
        """Step of the last checkpoint that this run has published, on rank 0."""
        return self._last_published

    def reserve(self, held: Sequence[Held]) -> None:
        """Get the memory for copies of these behind training, so that the first save need not wait for it."""
        shards = dealt_shards(held, self._ctx.dp)
        self._behind(lambda: self._reserve(shards))

    def save(
        self, step: int, held: Sequence[Held], *, state: Mapping[str, Any], config: Mapping[str, Any], wait: bool
    ) -> None:
        """Save what this rank holds at this moment, once the save before has ended.

        `wait`: return when it is published, and raise CheckpointError on all ranks where that failed. Otherwise return
        as soon as the values may change; `take_failure` tells how it went.
        """
        self.close()
        try:
            attempt, word = json.loads(from_rank_0(lambda: self._prepare(step), self._ctx))
        except CheckpointError as error:
            if wait:
                raise
            self._failures.append(str(error))
            return
        shards, refused = self._copied(dealt_shards(held, self._ctx.dp), wait)
        save = _Save(step=step, attempt=attempt, word=word, shards=shards, refused=refused, state=state, config=config)
        if wait:
            failure = self._run(save)
            from_rank_0(lambda: _raise(failure), self._ctx)
        else:
            self._behind(lambda: self._run_and_keep(save))

    def take_failure(self) -> str | None:
        """On rank 0, why saves without `wait` that ended since the last call failed; None where none did."""
        if self._ctx.rank != 0 or not self._failures:
            return None
        found = [self._failures.popleft()]
        while self._failures:
            found.append(self._failures.popleft())
        return "; ".join(found)

    def close(self) -> None:
        """Wait for a save in flight. On rank 0 that takes at most the store's timeout longer than its own writing."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """Instead of `close` after an error, when other ranks may be gone: a save in flight is left unfinished."""
        self._left.set()

    def _behind(self, work: Callable[[], None]) -> None:
        """Do it in the background; one thing at a time, so that this waits for what was begun before."""
        self.close()
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def _reserve(self, shards: Sequence[Shard]) -> None:
        with contextlib.suppress(RuntimeError):  # the save itself will say that there is not enough
            self._host_copy.reserve(shards)

    def _prepare(self, step: int) -> bytes:
        try:
            return json.dumps([prepare(self._root, step), secrets.token_hex(8)]).encode()
        except CheckpointError as error:
            raise CheckpointError(_not_saved(step, error)) from error

    def _copied(self, shards: Sequence[Shard], wait: bool) -> tuple[Sequence[Shard], str | None]:
        """Shards that may be written from, or why there are none."""
        # Nothing changes meanwhile what is waited for: of that, what the host has anyway is written from where it is.
        copied = [shard for shard in shards if not (wait and shard.values.device.type == "cpu")]
        try:
            copies = dict(zip(map(id, copied), self._host_copy.take(copied) if copied else (), strict=True))
        except RuntimeError as error:
            nbytes = sum(shard.values.nbytes for shard in copied)
            return (), f"no copy of {nbytes} bytes in host memory ({error}): set --no-async-save"
        return [copies.get(id(shard), shard) for shard in shards], None

    def _run_and_keep(self, save: _Save) -> None:
        failure = self._run(save)
        if failure is not None:
            self._failures.append(failure)

    def _run(self, save: _Save) -> str | None:
        """Write this rank's file and, on rank 0, publish what all have written; there, why that failed."""
        begin = time.monotonic()
        reports = Reports(self._store, save.word, self._ctx.world.size)
        try:
            reports.wrote(self._ctx.rank, self._write(save))
        except Exception as error:  # whatever it is: rank 0 must hear of it, and training must not end by it
            reports.failed(self._ctx.rank, _reason(error))
        if self._ctx.rank != 0:
            return None
        try:
            written = reports.collect(self._left)
            publish(self._root, merge(save.step, written, state=save.state, config=save.config))
        except Exception as error:
            return _not_saved(save.step, error) + self._discard(save.step)
        self._last_published = save.step
        LOGGER.info("checkpoint of step %d saved in %.1f s", save.step, time.monotonic() - begin)
        try:
            self._old.let_go(save.step)
        except CheckpointError as error:
            LOGGER.warning("checkpoint of step %d is saved, but older ones were not removed: %s", save.step, error)
        return None

    def _write(self, save: _Save) -> RankFile:
        if save.refused is not None:
            raise CheckpointError(save.refused)
        directory = step_directory(self._root, save.step)
        written = write_rank_file(directory, rank_file_name(self._ctx.rank, save.attempt), save.shards)
        if self._reads_back:
            read_back(directory, written)
        return written

    def _discard(self, step: int) -> str:
        """Remove what a failed save has left; what to add to its reason."""
        try:
            discard(self._root, step)
        except CheckpointError as error:
            return f"; its files are still there: {error}"
        return ""


def _not_saved(step: int, error: Exception) -> str:
    return f"the checkpoint of step {step} was not saved: {_reason(error)}"


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


def _raise(failure: str | None) -> bytes:
    if failure is not None:
        raise CheckpointError(failure)
    return b""
