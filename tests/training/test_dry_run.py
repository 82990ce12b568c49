# SPDX-License-Identifier: Apache-2.0
"""A dry run against the same step on real ranks: same collectives, same bytes."""

import functools
from dataclasses import replace

import pytest
import torch

from megatron_core.errors import DataError
from megatron_core.parallel.collective_log import Call
from megatron_core.training.dry_run import DryRun, dry_run, model_parameters, vocabulary
from megatron_core.training.live_bytes import counted
from megatron_core.training.train_step import train_step
from tests.e2e.proof import FAMILIES, config_of, start_rank
from tests.rank_pool import run_ranks

LAYOUTS = {
    # A CPU's RMSNorm keeps more than a GPU's.
    "alone": (1, f"{FAMILIES['llama']} --normalization LayerNorm --recompute-granularity full"),
    "tp2-sp-dp2-zero1": (
        4,
        f"{FAMILIES['dropout']} --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer "
        "--overlap-param-gather --recompute-granularity selective --recompute-modules mlp layernorm",
    ),
    "pp2-interleaved-tied": (
        2,
        f"{FAMILIES['gpt2']} --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    ),
    "offload": (1, f"{FAMILIES['gpt2']} --optimizer-cpu-offload --cpu-offloading-num-layers 2 --ddp-bucket-size 9000"),
}


def real_step(rank: int, world_size: int, flags: str) -> tuple[dict[str, int], list[Call]]:
    """Bytes and calls of one rank's second step, whose first may have made memory that stays."""
    run, state = start_rank(rank, world_size, flags)
    calls: list[Call] = []
    begin = run.ctx.log.begin

    def remembered(*args: object) -> Call:
        calls.append(begin(*args))  # type: ignore[arg-type]
        return calls[-1]

    run.ctx.log.begin = remembered  # type: ignore[method-assign, assignment]
    with counted(run) as live:
        train_step(run, state)
    run.source.close()
    return live.peaks(), calls


@functools.cache
def dry(world_size: int, flags: str, rank: int) -> DryRun:
    return dry_run(config_of(flags, world_size), world_size, rank)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_the_step_that_real_ranks_take(layout: str) -> None:
    world_size, flags = LAYOUTS[layout]
    flags = f"{flags} --micro-batch-size 2"
    for rank, (peaks, calls) in enumerate(run_ranks(real_step, world_size, flags)):
        found = dry(world_size, flags, rank)
        assert found.live_bytes["total"] == pytest.approx(peaks["total"], rel=0.02)
        for category in ("parameters", "gradients", "optimizer", "activations"):
            assert found.live_bytes[category] == peaks[category], category
        # On a CPU a reduce-scatter of gradients is an all-reduce.
        assert [(c.group, c.members) for c in calls] == [(s.call.group, s.call.members) for s in found.communicated]


def test_what_crosses_stages_has_the_shape_of_the_residual_stream() -> None:
    world_size, flags = LAYOUTS["pp2-interleaved-tied"]
    found = dry(world_size, f"{flags} --micro-batch-size 2", 1)
    crossing = {one.shape for one in found.communicated if one.call.op in ("send", "receive")}
    assert crossing == {found.message_shape} == {(16, 2, 32)}
    assert (found.stage, found.layers, found.microbatches) == (1, (range(1, 2), range(3, 4)), 4)


def test_no_number_is_drawn_and_nothing_is_allocated() -> None:
    """Of a model that no machine holds; its step has one microbatch."""
    flags = (
        "--mock-data --vocab-size 50257 --num-layers 8 --hidden-size 65536 --num-attention-heads 64 --seq-length 2048 "
        "--max-position-embeddings 2048 --hidden-dropout 0 --attention-dropout 0 --global-batch-size 1 --bf16 "
        "--tensor-model-parallel-size 4 --sequence-parallel --optimizer-cpu-offload"
    )
    before = torch.get_rng_state()
    found = dry_run(config_of(flags, 4), 4, 3)
    assert found.live_bytes["parameters"] == 2 * found.parameters > 2e11
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.distributed.is_initialized()


def test_a_model_s_parameters_count_once() -> None:
    config = config_of(f"{FAMILIES['gpt2']} --make-vocab-size-divisible-by 64", 1)
    h = 32
    assert model_parameters(config, vocabulary(config)) == 4 * (12 * h * h + 13 * h) + 2 * h + (61 + 16) * h


def test_it_needs_a_vocabulary_and_no_data() -> None:
    files = "--tokenizer-type GPT2BPETokenizer --vocab-file gone --merge-file gone"
    config = config_of(f"--data-path nowhere --split 1,0,0 {files} --vocab-size 61", 1)
    assert dry_run(config, 1, 0).live_bytes["total"] > 0
    with pytest.raises(DataError, match="gone"):
        dry_run(replace(config, model=replace(config.model, vocab_size=None)), 1, 0)
