# SPDX-License-Identifier: Apache-2.0
"""Which old checkpoints may go. Pure; asked only after a new one is published, so that there is always a whole one."""

from collections.abc import Collection
from dataclasses import dataclass

from megatron_core.config.checkpoint import CheckpointConfig


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What stays besides the newest checkpoint that is known to be good."""

    keep_last: int | None = None
    """So many of the last ones; None: all."""
    interval: int | None = None
    """Those whose step this divides."""


def retention_of(config: CheckpointConfig) -> Retention:
    """What the run asks for; --save-retain-interval alone keeps but the last one besides, as in Megatron-LM."""
    keep_last = config.most_recent_k
    if keep_last is None and config.save_retain_interval is not None:
        keep_last = 1
    return Retention(keep_last=None if keep_last == -1 else keep_last, interval=config.save_retain_interval)


def expired(usable: Collection[int], retention: Retention, *, newest_verified: int) -> list[int]:
    """Steps to be removed, oldest first.

    `usable`: steps whose checkpoints are whole; damaged ones neither count nor go. `newest_verified`, the newest known
    to be good, always stays.
    """
    keep_last, interval = retention.keep_last, retention.interval
    if keep_last is None:
        return []
    assert keep_last >= 1, f"keep_last is {keep_last}: at least one checkpoint stays"
    ordered = sorted(usable)
    return [
        step
        for step in ordered[: max(len(ordered) - keep_last, 0)]
        if step != newest_verified and not (interval and step % interval == 0)
    ]
