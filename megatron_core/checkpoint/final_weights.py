# SPDX-License-Identifier: Apache-2.0
"""Leaves the weights of a finished run as one safetensors file with whole tensors under their global names."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from megatron_core.checkpoint.gather_weights import gather_weights
from megatron_core.errors import CheckpointError
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.tensor_parallel.shard_spec import SpecParameter

FILE_NAME = "weights.safetensors"


def save_final_weights(
    parameters: Iterable[SpecParameter], ctx: ParallelContext, directory: str, step: int
) -> Path | None:
    """Write <directory>/weights.safetensors from rank 0 and return its path there. All ranks must call.

    Raises CheckpointError on every rank when rank 0 cannot write; no part of a file is left.
    """
    weights = gather_weights(parameters, ctx)
    path = Path(directory) / FILE_NAME
    failure = None if weights is None else _write(weights, path, step)
    # All ranks learn whether it worked, and none leaves while rank 0 still writes.
    failed = torch.tensor([float(failure is not None)], device=ctx.device)
    if float(all_reduce(failed, ctx.world)):
        raise CheckpointError(f"the final weights were not saved: {failure or 'see rank 0'}")
    return None if weights is None else path


def _write(weights: dict[str, torch.Tensor], path: Path, step: int) -> Exception | None:
    """Write under another name, then rename; what went wrong, if anything."""
    unfinished = path.with_suffix(".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        mode = unfinished.stat().st_mode  # what the umask gives; safetensors lets nobody but the owner read
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, unfinished, {"step": str(step)})
        unfinished.chmod(mode)
        os.replace(unfinished, path)
    except (OSError, SafetensorError) as error:
        unfinished.unlink(missing_ok=True)
        return error
    return None
