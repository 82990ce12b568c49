# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint of ours computes what one of Megatron-LM does: the same prompts over the matrices of each.

Megatron-LM needs GPUs and is not asked: its side is a plain forward pass over its own files, matrix by matrix. Ours is
the model that trains, in memory as a whole. Both in fp64, where rounding hides nothing, not even the form of a GELU.
"""

from pathlib import Path

import torch

from megatron_core.checkpoint.choose import Chosen, Source
from megatron_core.checkpoint.list_steps import split_step_path
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.megatron.arguments import model_config
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.reference_forward import reference_logits
from megatron_core.errors import CheckpointError
from megatron_core.inference.logits import logits
from megatron_core.inference.open_model import open_chosen
from megatron_core.parallel.context import single_process_context
from tools.verify_logits import LENGTHS

TOLERANCE = 1e-9
"""Of the largest logit: rounding in fp64 makes about 1e-15, a tanh for an exact GELU 1e-5 or more."""


def require_same_logits(
    step: Path, manifest: Manifest, theirs: OpenedMegatron, rounded: torch.dtype | None = None
) -> str:
    """Compare the checkpoint in `step`, whose manifest need not be on the disk, with one of Megatron-LM, and say how.

    rounded: what ours was cast to on the way there; None: it was not. Raises CheckpointError above the tolerance.
    """
    root, number = split_step_path(step)
    chosen = Chosen(source=Source(root=root, step=number), manifest=manifest)
    ours = open_chosen(chosen, single_process_context(), dtype=torch.float64).model
    # One side may have been rounded to fewer bits, or hold the masters of the other's weights: both get the fewest.
    stored = [getattr(torch, entry.dtype) for entry in manifest.tensors if entry.name.startswith("model/")]
    common = min((*stored, *([] if rounded is None else [rounded])), key=lambda dtype: dtype.itemsize)
    with torch.no_grad():
        for parameter in (parameter for chunk in ours.chunks for parameter in chunk.parameters()):
            parameter.copy_(parameter.to(common))
    lengths = sorted({min(length, ours.config.seq_length) for length in LENGTHS})
    tokens = torch.randint(ours.config.vocabulary, (1, lengths[-1]), generator=torch.Generator().manual_seed(1))
    # Once: the prompts are beginnings of one another.
    their_config = model_config(theirs.arguments, ours.config.vocabulary, theirs.origin)
    wanted = reference_logits(theirs, their_config, tokens, common)
    got = [logits(ours, tokens[:, :length]) for length in lengths]
    gaps = [(mine - wanted[:, : mine.shape[1]]).abs().max() for mine in got]
    gap, largest = torch.stack(gaps).max().item(), wanted.abs().max().item()  # a NaN stays one
    found = (
        f"logits of {len(lengths)} prompts differ from those over Megatron's own matrices by at most {gap:.2g}, the "
        f"largest is {largest:.3g}"
    )
    if not gap <= TOLERANCE * largest:
        raise CheckpointError(f"{found}: one does not compute what the other does; nothing was written")
    return found
