# SPDX-License-Identifier: Apache-2.0
"""Ranks tell each other JSON over the store: it works where collectives may not, which is when the doctor is asked."""

import datetime
import json
from typing import Any

import torch.distributed as dist

from megatron_core.errors import UserError
from megatron_core.training.doctor.number_ranges import format_number_ranges


class SilentRanksError(UserError):
    """Some ranks did not say what they were to say."""


class Exchange:
    """One rank's end. All ranks must make the same calls in the same order, each topic once."""

    def __init__(self, store: dist.Store, rank: int, world_size: int, timeout_minutes: float) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self._timeout = datetime.timedelta(minutes=timeout_minutes)

    def gather(self, topic: str, value: Any) -> list[Any] | None:
        """Every rank's value, in order of rank, on rank 0; None elsewhere. Raises SilentRanksError on rank 0."""
        self.store.set(f"{topic}/{self.rank}", json.dumps(value))
        if self.rank != 0:
            return None
        keys = [f"{topic}/{rank}" for rank in range(self.world_size)]
        try:
            self.store.wait(keys, self._timeout)
        except dist.DistStoreError as error:
            silent = format_number_ranges(rank for rank, key in enumerate(keys) if not self.store.check([key]))
            minutes = self._timeout / datetime.timedelta(minutes=1)
            raise SilentRanksError(
                f"ranks {silent} did not answer ({topic}) within {minutes:g} minutes: look at their logs, and at the "
                "network of their nodes"
            ) from error
        return [json.loads(self.store.get(key)) for key in keys]

    def broadcast(self, topic: str, value: Any) -> Any:
        """Rank 0's value on every rank. Raises SilentRanksError elsewhere."""
        if self.rank == 0:
            self.store.set(topic, json.dumps(value))
            return value
        return json.loads(self.await_text(topic))

    def await_text(self, key: str) -> str:
        """What some rank sets under a key, as soon as it does. Raises SilentRanksError."""
        try:
            self.store.wait([key], self._timeout)
        except dist.DistStoreError as error:
            raise SilentRanksError(f"rank {self.rank} waited for {key} in vain: look at the log of rank 0") from error
        return bytes(self.store.get(key)).decode()
