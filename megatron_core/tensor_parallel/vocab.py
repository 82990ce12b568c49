# SPDX-License-Identifier: Apache-2.0
"""How a vocabulary is laid out over tp: equal blocks of a padded row count, the padding at the very end."""

import math
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


def padded_vocabulary(config: ModelConfig, tp: int) -> int:
    """Rows stored over all tp ranks: the true vocabulary rounded up to a multiple of lcm(divisor, tp)."""
    if config.padded_vocab_size is not None:
        return config.padded_vocab_size
    multiple = math.lcm(config.make_vocab_size_divisible_by, tp)
    return -(-config.vocabulary // multiple) * multiple


def vocab_slice(config: ModelConfig, group: Group) -> VocabSlice:
    """This rank's slice of the vocabulary."""
    rows = padded_vocabulary(config, group.size) // group.size
    start = min(group.coordinate * rows, config.vocabulary)
    return VocabSlice(rows, start, min(start + rows, config.vocabulary))
