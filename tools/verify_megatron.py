# SPDX-License-Identifier: Apache-2.0
"""Whether a checkpoint of ours computes what one of Megatron-LM does: the same prompts over the matrices of each.

Megatron-LM needs GPUs and is not asked: its side is a plain forward pass over its own files, matrix by matrix. Ours is
the model that trains, in memory as a whole, both in fp32.
"""

from pathlib import Path

import torch

from megatron_core.checkpoint.choose import Chosen, Source
from megatron_core.checkpoint.list_steps import split_step_path
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.reference_forward import reference_logits
from megatron_core.errors import CheckpointError
from megatron_core.inference.logits import logits
from megatron_core.inference.open_model import open_chosen
from megatron_core.parallel.context import single_process_context
from tools.verify_logits import LENGTHS, TOLERANCE, Compared


def require_same_logits(
    step: Path, manifest: Manifest, theirs: OpenedMegatron, rounded: torch.dtype | None = None
) -> Compared:
    """Compare the checkpoint in `step`, whose manifest need not be on the disk, with one of Megatron-LM.

    rounded: what ours was cast to on the way there; None: it was not. Raises CheckpointError above the tolerance.
    """
    root, number = split_step_path(step)
    chosen = Chosen(source=Source(root=root, step=number), manifest=manifest)
    ours = open_chosen(chosen, single_process_context(), dtype=torch.float32).model
    with torch.no_grad():
        for parameter in (parameter for chunk in ours.chunks for parameter in chunk.parameters()):
            parameter.copy_(parameter if rounded is None else parameter.to(rounded))
    lengths = sorted({min(length, ours.config.seq_length) for length in LENGTHS})
    tokens = torch.randint(ours.config.vocabulary, (1, lengths[-1]), generator=torch.Generator().manual_seed(1))
    wanted = reference_logits(theirs, ours.config, tokens)  # once: the prompts are beginnings of one another
    got = [logits(ours, tokens[:, :length]) for length in lengths]
    gaps = [(mine - wanted[:, : mine.shape[1]]).abs().max() for mine in got]
    found = Compared(torch.stack(gaps).max().item(), wanted.abs().max().item(), len(lengths))
    if not found.agrees:
        raise CheckpointError(
            f"logits differ by up to {found.difference:.3g} from those over Megatron's own matrices, of which the "
            f"largest is {found.largest:.3g}: more than {TOLERANCE:g} of it; nothing was written"
        )
    return found
