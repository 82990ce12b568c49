# SPDX-License-Identifier: Apache-2.0
"""Whether a converted model computes what the original does: the same prompts through transformers and through ours.

Both in fp32 on the CPU, weights rounded to the narrower of both sides' dtypes, so the whole model must fit in memory
twice. Code that comes with a model is never run.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch

from megatron_core.checkpoint.choose import Chosen, Source
from megatron_core.checkpoint.list_steps import split_step_path
from megatron_core.checkpoint.manifest import Manifest
from megatron_core.errors import CheckpointError
from megatron_core.inference.logits import logits
from megatron_core.inference.open_model import open_chosen, round_weights
from megatron_core.parallel.context import single_process_context

LENGTHS = (1, 2, 7, 33, 128)
TOLERANCE = 1e-5
"""Of the largest logit: rounding in fp32 makes about 1e-6 of it, a tanh for an exact GELU 1e-4."""


@dataclass(frozen=True)
class Compared:
    """What was found."""

    difference: float
    """Largest |ours - theirs|."""
    largest: float
    """Largest |theirs|."""
    prompts: int

    @property
    def agrees(self) -> bool:
        """Whether the difference is rounding. False where a logit is no number."""
        return self.difference <= TOLERANCE * self.largest

    def __str__(self) -> str:
        return (
            f"logits of {self.prompts} prompts differ from transformers' by at most {self.difference:.2g}, the largest "
            f"is {self.largest:.3g}"
        )


def can_verify() -> bool:
    """Whether transformers is installed."""
    return importlib.util.find_spec("transformers") is not None


def require_same_logits(step: Path, manifest: Manifest, theirs: Path, dtype: torch.dtype | None = None) -> Compared:
    """Compare the checkpoint in `step`, whose manifest need not be on the disk, with a directory of transformers.

    dtype: what the one was cast to when it was made from the other; None: it was not. Raises CheckpointError above the
    tolerance, or where transformers cannot load its side.
    """
    found = compare_logits(step, manifest, theirs, dtype)
    if not found.agrees:
        raise CheckpointError(
            f"{found}: more than {TOLERANCE:g} of it, so one does not compute what the other does; nothing was written"
        )
    return found


def compare_logits(step: Path, manifest: Manifest, theirs: Path, dtype: torch.dtype | None = None) -> Compared:
    """The largest difference over prompts of several lengths, of random tokens. Raises as `require_same_logits`."""
    root, number = split_step_path(step)
    chosen = Chosen(source=Source(root=root, step=number), manifest=manifest)
    narrower = _narrower(manifest, dtype)
    context = single_process_context()
    # Not packed: plain products round as transformers' do, so that what differs is not rounding.
    ours = open_chosen(chosen, context, dtype=torch.float32, rounded_to=narrower, packed=False).model
    model = _load(theirs)
    round_weights(model, narrower)
    generator = torch.Generator().manual_seed(1)
    lengths = sorted({min(length, ours.config.seq_length) for length in LENGTHS})
    difference = largest = 0.0
    with torch.inference_mode():
        for length in lengths:
            tokens = torch.randint(ours.config.vocabulary, (1, length), generator=generator)
            got, wanted = logits(ours, tokens), model(tokens, use_cache=False).logits
            if got.shape != wanted.shape:
                raise CheckpointError(f"ours has logits {tuple(got.shape)}, transformers {tuple(wanted.shape)}")
            # A NaN must not be passed over, as max() would.
            difference = float(torch.tensor([difference, (got - wanted).abs().max().item()]).max())
            largest = max(largest, wanted.abs().max().item())
    return Compared(difference, largest, len(lengths))


def _narrower(manifest: Manifest, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype that both sides' weights have in common."""
    stored = [getattr(torch, entry.dtype) for entry in manifest.tensors if entry.name.startswith("model/")]
    narrowest: torch.dtype = min(stored, key=lambda found: found.itemsize)
    return narrowest if dtype is None or dtype.itemsize > narrowest.itemsize else dtype


def _load(directory: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM  # takes seconds, and need not be installed
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # anything can be raised there
        raise CheckpointError(f"transformers cannot load {directory}: {error}") from error
    module: torch.nn.Module = model.eval()
    return module
