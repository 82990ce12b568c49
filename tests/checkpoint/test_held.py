# SPDX-License-Identifier: Apache-2.0
"""Held tensors are views of a rank's storage that together cover each tensor of the model exactly once."""

from collections import Counter

import pytest
import torch

from megatron_core.checkpoint.held import Held, held_tensors, spec_rectangle
from megatron_core.checkpoint.rectangle import Rectangle, whole
from megatron_core.tensor_parallel.shard_spec import ShardSpec
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks

LAYOUTS = {
    "tp2-pp2-dp2": (8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    "tp4-padded": (4, "--tensor-model-parallel-size 4 --make-vocab-size-divisible-by 128"),
}


def held_of(flags: str, *, with_optim: bool = True) -> list[Held]:
    run, _ = start_rank(0, 1, flags)
    return held_tensors(run.reducer.buckets, run.optimizer, with_optim=with_optim)


@pytest.mark.parametrize(
    ("flags", "with_optim", "sections"),
    [
        ("", False, {"model"}),
        ("--bf16", False, {"model"}),
        ("", True, {"model", "adam_m", "adam_v"}),
        ("--fp64", True, {"model", "adam_m", "adam_v"}),
        ("--bf16", True, {"model", "adam_m", "adam_v", "master"}),
    ],
)
def test_a_master_is_held_only_where_it_is_not_the_weight(flags: str, with_optim: bool, sections: set[str]) -> None:
    held = held_of(f"{FAMILIES['gpt2']} {flags}", with_optim=with_optim)
    parameters = {tensor.name.partition("/")[2] for tensor in held}
    assert {tensor.name for tensor in held} == {f"{section}/{name}" for section in sections for name in parameters}
    assert len(held) == len(sections) * len(parameters)
    wide = torch.float64 if "--fp64" in flags else torch.float32
    assert all(tensor.values.dtype == wide for tensor in held if not tensor.name.startswith("model/"))


@pytest.mark.parametrize("precision", ["", "--bf16"])
def test_weights_lag_behind_their_masters_where_updates_are_late(precision: str) -> None:
    flags = f"{FAMILIES['gpt2']} {precision} --optimizer-cpu-offload"
    held = held_of(f"{flags} --optimizer-delayed-update-start 2")
    assert {tensor.name.partition("/")[0] for tensor in held} == {"model", "adam_m", "adam_v", "master"}
    assert all(tensor.lags == tensor.name.startswith("model/") for tensor in held)
    assert not any(tensor.lags for tensor in held_of(flags))
    assert not any(tensor.lags for tensor in held_of(f"{flags} --optimizer-delayed-update-start 2", with_optim=False))


def test_values_are_the_storage_itself() -> None:
    run, _ = start_rank(0, 1, f"{FAMILIES['gpt2']} --bf16")
    for tensor in held_tensors(run.reducer.buckets, run.optimizer, with_optim=True):
        tensor.values.fill_(3.0)
    for state in run.optimizer.states:
        for flat in (state.bucket.weights, state.master, state.moments.m, state.moments.v):
            assert flat.eq(3.0).all()


def counted_parts(rank: int, world_size: int, flags: str) -> list[tuple[str, tuple[int, ...], Rectangle]]:
    run, _ = start_rank(rank, world_size, flags)
    held = held_tensors(run.reducer.buckets, run.optimizer, with_optim=True)
    assert all(tensor.values.shape == tensor.rectangle.shape for tensor in held)
    return [(tensor.name, tensor.shape, tensor.rectangle) for tensor in held if tensor.counted]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counted_parts_cover_each_tensor_once_for_each_replica(layout: str) -> None:
    world_size, more = LAYOUTS[layout]
    replicas = 2 if "dp2" in layout else 1
    covered: Counter[str] = Counter()
    shapes: dict[str, tuple[int, ...]] = {}
    for parts in run_ranks(counted_parts, world_size, f"{FAMILIES['llama']} {more}"):
        for name, shape, rectangle in parts:
            covered[name] += rectangle.volume
            assert shapes.setdefault(name, shape) == shape
    expected = {tensor.name: tensor.shape for tensor in held_of(FAMILIES["llama"])}
    assert shapes == expected
    assert covered == {name: replicas * whole(shape).volume for name, shape in expected.items()}


def test_a_rank_of_nothing_but_padding_has_an_empty_rectangle() -> None:
    spec = ShardSpec(name="embedding", shape=(5, 3), dim=0, start=5, stop=5)
    assert spec_rectangle(spec).volume == 0
