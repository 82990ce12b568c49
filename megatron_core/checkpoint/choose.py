# SPDX-License-Identifier: Apache-2.0
"""Agrees on one checkpoint: rank 0 looks at the disk, all ranks get its manifest, the same error, or nothing."""

import logging
from dataclasses import dataclass
from pathlib import Path

from megatron_core.checkpoint.agree import from_rank_0
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.find import find_newest, find_step
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.manifest_json import decode_manifest, encode_manifest
from megatron_core.parallel.context import ParallelContext

LOGGER = logging.getLogger("megatron_core")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where to look for a checkpoint."""

    root: Path
    step: int | None = None
    """This one and no other; None: the newest that is usable."""
    own: bool = False
    """Whether the run saves there too (see `find_newest`)."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One checkpoint, the same on every rank."""

    source: Source
    manifest: Manifest

    @property
    def step(self) -> int:
        """Its step."""
        return self.manifest.step

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return step_directory(self.source.root, self.step)


def choose(source: Source, ctx: ParallelContext, *, below: int | None = None) -> Chosen | None:
    """The checkpoint to load; None where there is nothing at all. All ranks must call.

    below: only older steps than this. Raises CheckpointError on every rank where there is no usable one.
    """
    text = from_rank_0(lambda: _find(source, below), ctx)
    return Chosen(source=source, manifest=decode_manifest(text)) if text else None


def _find(source: Source, below: int | None) -> bytes:
    if source.step is not None:
        found = find_step(source.root, source.step)
    else:
        found = find_newest(source.root, below, own=source.own)
    for line in found.passed_over:
        LOGGER.warning("passed over: %s", line)
    return b"" if found.manifest is None else encode_manifest(found.manifest)
