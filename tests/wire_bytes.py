# SPDX-License-Identifier: Apache-2.0
"""Bytes that a rank sends in collectives, counted where they are called: those of the best algorithms, no headers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from megatron_core.parallel import collectives


@dataclass
class WireBytes:
    """Counted so far."""

    sent: float = 0.0


@contextmanager
def counted_bytes() -> Iterator[WireBytes]:
    """Count within the block. Of P members a ring sends (P - 1)/P of what it reduces, and that again to spread it."""
    count = WireBytes()

    def counting(function: Callable[..., Any], argument: int, share: Callable[[int], float]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            tensor: torch.Tensor = arguments[argument]
            count.sent += tensor.nbytes * share(dist.get_world_size(keywords["group"]))
            return function(*arguments, **keywords)

        return call

    with (
        mock.patch.object(dist, "all_reduce", counting(dist.all_reduce, 0, lambda p: 2 * (p - 1) / p)),
        mock.patch.object(dist, "all_to_all_single", counting(dist.all_to_all_single, 1, lambda p: (p - 1) / p)),
        mock.patch.object(collectives, "_all_gather", counting(collectives._all_gather, 1, lambda p: p - 1)),
        mock.patch.object(
            collectives, "_reduce_scatter", counting(collectives._reduce_scatter, 1, lambda p: (p - 1) / p)
        ),
    ):
        yield count
