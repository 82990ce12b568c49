# SPDX-License-Identifier: Apache-2.0
"""Removes what need not stay, once a newer checkpoint is published: old checkpoints and rests of interrupted saves."""

from collections.abc import Collection
from pathlib import Path

from megatron_core.checkpoint.directory import delete, has_manifest, steps_present
from megatron_core.checkpoint.find import usable_steps
from megatron_core.checkpoint.retention import Retention, expired


class OldCheckpoints:
    """Those of one directory, as the rank that publishes there sees them."""

    def __init__(self, root: Path, retention: Retention, damaged: Collection[int] = ()) -> None:
        """`damaged`: steps whose blocks proved damaged though their manifests parse."""
        self._root = root
        self._retention = retention
        self._damaged = set(damaged)
        self._usable: set[int] | None = None

    def let_go(self, published: int) -> None:
        """Called after `published` was; where old ones may go, its files have been read back. Raises CheckpointError.

        Rests of later steps stay: they are overwritten or outlived when the run gets there.
        """
        for rest in steps_present(self._root):
            if rest < published and not has_manifest(self._root, rest):
                delete(self._root, rest)
        if self._retention.keep_last is None:
            return
        self._damaged.discard(published)
        if self._usable is None:  # only once: the manifests of a large run take long to parse
            self._usable = set(usable_steps(self._root))
        self._usable.add(published)
        for old in expired(self._usable - self._damaged, self._retention, newest_verified=published):
            self._usable.discard(old)
            if has_manifest(self._root, old):  # else somebody has removed it
                delete(self._root, old)
