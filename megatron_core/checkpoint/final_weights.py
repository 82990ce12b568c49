# SPDX-License-Identifier: Apache-2.0
"""Leaves the weights of a finished run as one safetensors file with whole tensors under their global names."""

import os
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file

from megatron_core.checkpoint.gather_weights import gather_weights
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import SpecParameter

FILE_NAME = "weights.safetensors"


def save_final_weights(
    parameters: Iterable[SpecParameter], ctx: ParallelContext, directory: str, step: int
) -> Path | None:
    """Write <directory>/weights.safetensors from rank 0 and return its path there. All ranks must call."""
    weights = gather_weights(parameters, ctx)
    if weights is None:
        return None
    path = Path(directory) / FILE_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, unfinished, {"step": str(step)})
    os.replace(unfinished, path)
    return path
