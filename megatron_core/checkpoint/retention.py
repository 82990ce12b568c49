# SPDX-License-Identifier: Apache-2.0
"""Which old checkpoints may go. Pure; asked only after a new one is published, so that there is always a whole one."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What stays besides the newest checkpoint that is known to be good."""

    keep_last: int | None = None
    """So many of the last ones; None: all."""
    interval: int | None = None
    """Those whose step this divides."""


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
