# SPDX-License-Identifier: Apache-2.0
"""What was resolved, for whoever reads the log."""

import logging
import math
from collections.abc import Sequence

import torch

from megatron_core.parallel.collectives import all_reduce
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.training.build import Run
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.stages import describe_stages

LOGGER = logging.getLogger(LOGGER_NAME)


def describe(run: Run, seconds: float) -> None:
    """Log layout, stages, size and length of the run; `seconds` since the process began. All ranks must call."""
    grid, model, parallel = run.ctx.grid, run.config.model, run.config.parallel
    layers = stage_layers(model, parallel)
    LOGGER.info(
        "layout tp %d x pp %d x dp %d (%s%s) on %s, %s, torch %s",
        grid.tp,
        grid.pp,
        grid.dp,
        parallel.pipeline_schedule,
        ", sequence parallel" if parallel.sequence_parallel else "",
        run.ctx.device.type,
        run.config.optim.precision,
        torch.__version__,
    )
    LOGGER.info("stages %s", describe_stages(layers, grid.pp))
    LOGGER.info("%s parameters", f"{count_parameters(run):,}")
    if run.config.optim.optimizer_cpu_offload:
        LOGGER.info(
            "optimizer on the host, gradients accumulate on the %s: a rank has %.3f GB of them there and %.3f GB here",
            run.config.optim.offload_gradients,
            _gigabytes(run.reducer.host_memory),
            _gigabytes(run.reducer.device_memory),
        )
    LOGGER.info(
        "%d steps, %d samples of %d tokens, vocabulary %d; ready after %.1f s",
        run.length.steps,
        run.length.samples,
        model.seq_length,
        model.vocabulary,
        seconds,
    )


def _gigabytes(tensors: Sequence[torch.Tensor]) -> float:
    return sum(tensor.nbytes for tensor in tensors) / 1e9


def count_parameters(run: Run) -> int:
    """Elements of the whole model, each counted once. All ranks must call."""
    own = sum(math.prod(p.spec.local_shape) for p in run.reducer.parameters if p.spec.counted)
    count = torch.tensor([own if run.ctx.dp.coordinate == 0 else 0], dtype=torch.int64, device=run.ctx.device)
    return int(all_reduce(count, run.ctx.world))
