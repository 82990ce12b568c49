# SPDX-License-Identifier: Apache-2.0
"""Which old checkpoints may go. Pure; asked only after a new one is published, so that there is always a whole one."""

from collections.abc import Collection


def expired(
    usable: Collection[int], *, keep_last: int | None, retain_interval: int | None, newest_verified: int
) -> list[int]:
    """Steps to be removed, oldest first.

    `usable`: steps whose checkpoints are whole; damaged ones neither count nor go. Kept are the last `keep_last`
    (None: all) by number, multiples of `retain_interval`, and always `newest_verified`, the newest known to be good.
    """
    if keep_last is None:
        return []
    assert keep_last >= 1, f"keep_last is {keep_last}: at least one checkpoint stays"
    ordered = sorted(usable)
    return [
        step
        for step in ordered[: max(len(ordered) - keep_last, 0)]
        if step != newest_verified and not (retain_interval and step % retain_interval == 0)
    ]
