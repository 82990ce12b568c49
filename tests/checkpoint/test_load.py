# SPDX-License-Identifier: Apache-2.0
"""Any layout from any layout, tensor by tensor and bit by bit; nothing half loaded, nothing left over."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatron_core.checkpoint.choose import Source, choose
from megatron_core.checkpoint.directory import step_directory
from megatron_core.checkpoint.held import held_tensors
from megatron_core.checkpoint.load import load_tensors
from megatron_core.errors import CheckpointError
from tests.checkpoint.saved_run import fill_with_numbers, part, save_run
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks

GPT2, LLAMA, QK = (FAMILIES[name] for name in ("gpt2", "llama", "qk"))
TP2_PP2 = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
VPP = "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
PADDED = "--make-vocab-size-divisible-by 128"
LAYOUTS = {
    "alone": (1, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "vpp": (2, VPP),
    "tp2-pp2-padded": (4, f"{TP2_PP2} {PADDED}"),
    "dp2-sequence-parallel": (4, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp4": (4, "--pipeline-model-parallel-size 4 --pipeline-split cost"),
}


def save(rank: int, world_size: int, flags: str, root: Path, steps: list[int], with_optim: bool = True) -> None:
    run, state = start_rank(rank, world_size, flags)
    for step in steps:
        fill_with_numbers(run, salt=step)
        save_run(run, replace(state, step=step), root, with_optim=with_optim)


def load(rank: int, world_size: int, flags: str, root: Path, step: int | None = None, with_optim: bool = True) -> int:
    """Load and compare every element that the rank holds; the step that was loaded."""
    run, _ = start_rank(rank, world_size, flags)
    fill_with_numbers(run, salt=-1)
    chosen = choose(Source(root=root, step=step), run.ctx)
    assert chosen is not None
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=with_optim)
    loaded = load_tensors(chosen, held, run.ctx, with_optim=with_optim)
    for tensor in held:
        assert torch.equal(tensor.values, part(tensor, loaded.step).to(tensor.values.dtype)), tensor.name
    for parameter in run.reducer.parameters:
        local = parameter.detach()
        padding = local[parameter.spec.local_shape[0] :]
        assert not padding.any(), f"{parameter.spec.name} has padding rows that are not zero"
    return loaded.step


@pytest.mark.parametrize("family", [f"{GPT2} --fp64", LLAMA, f"{QK} --bf16"], ids=["gpt2-64", "llama-32", "qk-bf16"])
@pytest.mark.parametrize("saved_at", ["vpp", "tp2-pp2-padded"])
def test_every_layout_loads_every_element(tmp_path: Path, family: str, saved_at: str) -> None:
    world_size, layout = LAYOUTS[saved_at]
    run_ranks(save, world_size, f"{family} {layout}", tmp_path, [3])
    for world_size, layout in LAYOUTS.values():
        assert run_ranks(load, world_size, f"{family} {layout}", tmp_path) == [3] * world_size, layout
