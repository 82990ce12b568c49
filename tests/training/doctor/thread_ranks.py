# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads over one store, for what talks over the store alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch.distributed as dist

from megatron_core.training.doctor.exchange import Exchange

Result = TypeVar("Result")


def on_threads(world_size: int, function: Callable[[Exchange], Result], timeout_minutes: float = 0.5) -> list[Result]:
    """Results of function(exchange), in order of rank; the first error is raised once all have ended."""
    store = dist.HashStore()
    with ThreadPoolExecutor(world_size) as pool:
        running = [
            pool.submit(function, Exchange(store, rank, world_size, timeout_minutes)) for rank in range(world_size)
        ]
    return [future.result() for future in running]
