# SPDX-License-Identifier: Apache-2.0
"""Logits of checkpoints of ours, on one process or many; imports nothing of transformers, so that ranks start fast."""

from collections.abc import Sequence
from pathlib import Path

import torch

from megatron_core.inference.logits import logits
from megatron_core.inference.open_model import open_model
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import session_pool
from tests.small_model import ALONE

Prompts = Sequence[Sequence[int]]


def our_logits(ctx: ParallelContext, runs: Sequence[Path], prompts: Prompts) -> list[list[torch.Tensor]]:
    """Of each run the logits [s, v] of each prompt, in fp32."""
    found = []
    for run in runs:
        opened = open_model(run, ctx, dtype=torch.float32)
        found.append([logits(opened.model, torch.tensor([list(prompt)]))[0] for prompt in prompts])
    return found


def logits_at(layout: dict[str, int], runs: Sequence[Path], prompts: Prompts) -> list[list[torch.Tensor]]:
    """The same at a layout; {} is one process."""
    if not layout:
        return our_logits(ALONE, runs, prompts)
    found: list[list[torch.Tensor]] = session_pool().call(our_logits, 2, (runs, prompts), layout=layout)[0]
    return found
