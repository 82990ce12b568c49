# SPDX-License-Identifier: Apache-2.0
"""How a vocabulary is laid out over tp: equal blocks of a padded row count, the padding at the very end."""

from dataclasses import dataclass

from megatron_core.config.model import ModelConfig
from megatron_core.parallel.context import Group


@dataclass(frozen=True)
class VocabSlice:
    """The rows of the vocabulary that one tp rank stores."""

    rows: int
    """Rows stored, padding included; the same on every rank."""
    start: int
    """First token id stored."""
    stop: int
    """One past the last real token id stored; stop - start <= rows, and may be 0."""


def vocab_slice(config: ModelConfig, group: Group) -> VocabSlice:
    """This rank's slice of the vocabulary."""
    rows = config.padded_vocabulary(group.size) // group.size
    start = min(group.coordinate * rows, config.vocabulary)
    return VocabSlice(rows, start, min(start + rows, config.vocabulary))
