# SPDX-License-Identifier: Apache-2.0
"""What a data set gives for a number: s + 1 tokens, of which the last is target only."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, eq=False)
class Sample:
    """`tokens` [s + 1] int64; the first `num_targets` of the s targets count, the rest is padding."""

    number: int
    tokens: np.ndarray
    num_targets: int


class TrainingData(Protocol):
    """Endless: any number ≥ 0 is a sample, and the same one each time."""

    def sample(self, number: int) -> Sample:
        """Sample of that number, s targets long."""
        ...

    def source(self, number: int) -> str:
        """Where that sample comes from, for messages."""
        ...


class ValidationData(Protocol):
    """Finite: each token of the data is a target once."""

    @property
    def num_samples(self) -> int:
        """Samples in all."""
        ...

    def sample(self, number: int) -> Sample:
        """Sample of that number, in [0, num_samples)."""
        ...

    def source(self, number: int) -> str:
        """Where that sample comes from, for messages."""
        ...


def padding_sample(seq_length: int) -> Sample:
    """A sample without targets, which fills up a last batch; its number is −1."""
    return Sample(-1, np.zeros(seq_length + 1, dtype=np.int64), 0)
