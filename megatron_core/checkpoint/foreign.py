# SPDX-License-Identifier: Apache-2.0
"""A model of another program as ours would hold it: a configuration, and tensors that are read when they are wanted."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class ForeignTensor:
    """One of our weights, wherever it comes from."""

    name: str
    """Ours, without section: "layers.0.mlp.up.weight"."""
    shape: tuple[int, ...]
    """Our global shape, with the true vocabulary."""
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]
    """The whole tensor on the CPU, contiguous, of that shape and dtype. Raises CheckpointError."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """All weights of a model and what they are the weights of."""

    config: Mapping[str, Mapping[str, Any]]
    """Sections of our configuration as JSON, "model" and "data", with derived sizes written out; what is left out has
    its default."""
    tensors: Sequence[ForeignTensor]
    origin: str
    """Where it comes from, for messages."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)
