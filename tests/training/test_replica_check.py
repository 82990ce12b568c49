# SPDX-License-Identifier: Apache-2.0
"""Replicas that differ in one bit of one tensor are found, named, and end the run on every rank."""

import pytest
import torch
import xxhash

from megatron_core.checkpoint.held import held_tensors
from megatron_core.training import replica_check
from megatron_core.training.faults import FaultError
from megatron_core.training.replica_check import check_replicas
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks

GPT2 = f"{FAMILIES['gpt2']} --bf16"


def checked(rank: int, world_size: int, flags: str, flipped: dict[int, str]) -> str:
    """What the check says after one bit of the tensor that `flipped` names for this rank was turned over."""
    run, _ = start_rank(rank, world_size, flags)
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=True)
    for tensor in held:
        if tensor.name.startswith(flipped.get(rank, "none")):
            last = tensor.values.view(torch.uint8).view(-1)[-1:]  # a view, so that the storage itself changes
            last ^= 1
    try:
        check_replicas(held, run.ctx, step=7)
    except FaultError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout", ["", "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"])
def test_replicas_are_equal_and_other_ranks_need_not_be(layout: str) -> None:
    assert run_ranks(checked, 4, f"{GPT2} {layout}", {}) == [""] * 4
    assert checked(0, 1, GPT2, {0: "model/"}) == "", "one rank has nobody to differ from"


@pytest.mark.parametrize(
    "name", ["model/embedding.tokens.weight", "adam_v/final_norm.bias", "master/layers.1.mlp.up.weight"]
)
def test_the_odd_one_out_of_many_is_named_on_every_rank(name: str) -> None:
    said = run_ranks(checked, 4, GPT2, {2: name})
    rank = f"rank 2 (dp 2, tp 0, pp 0) in {name}"
    remedy = "leave those devices out and load a checkpoint no newer than the last check that passed."
    expected = f"step 7: data-parallel replicas differ: {rank}. Memory or a link is broken: {remedy}"
    assert said == [expected] * 4


def test_of_two_that_differ_both_are_named_and_other_replicas_hear_of_it() -> None:
    said = run_ranks(checked, 4, f"{GPT2} --tensor-model-parallel-size 2", {1: "adam_m/layers.0"})
    assert len(set(said)) == 1
    assert "differ: rank 1 (dp 0, tp 1, pp 0) in adam_m/layers.0." in said[0]
    assert "; rank 3 (dp 1, tp 1, pp 0) in adam_m/layers.0." in said[0]
    assert "rank 0" not in said[0] and "rank 2" not in said[0]
    assert " and 11 more" in said[0], "a layer has 14 tensors, of which three are named"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_tensor_is_read_whole_chunk_by_chunk(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_check, "_CHUNK_BYTES", 1000)
    values = torch.arange(3000, dtype=dtype).view(50, 60)
    raw = values.view(torch.uint8).numpy().tobytes()
    assert replica_check._digest(values) == xxhash.xxh3_64_intdigest(raw) - 2**63
    assert replica_check._digest(values.T) != replica_check._digest(values)
    assert replica_check._digest(torch.ones((), dtype=dtype)) != replica_check._digest(torch.zeros((), dtype=dtype))
