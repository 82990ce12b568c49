# SPDX-License-Identifier: Apache-2.0
"""Adds to an error of a GPU without memory what the planner says of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from megatron_core.config.run import RunConfig
from megatron_core.parallel.context import ParallelContext
from megatron_core.planner.memory_advice import memory_advice
from megatron_core.planner.workload import Workload


@contextmanager
def advised_out_of_memory(config: RunConfig, ctx: ParallelContext, vocab_size: int) -> Iterator[None]:
    """An error that comes from inside says what this layout needs and what would fit. `config`: resolved."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        workload = Workload.of(config.with_vocabulary(vocab_size), ctx.grid.world_size)
        capacity = torch.cuda.get_device_properties(ctx.device).total_memory
        advice = memory_advice(workload, ctx.pp.coordinate, capacity)
        raise torch.OutOfMemoryError(f"{error}\n{advice}") from error
