# SPDX-License-Identifier: Apache-2.0
"""The errors of compression cover their global tensors once, and are views of what the optimizer uses."""

from collections import defaultdict

import pytest
import torch

from megatron_core.checkpoint.cover import find_overlap
from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.held_errors import has_no_place_in, held_with_errors, lost_errors
from megatron_core.checkpoint.manifest import Manifest, TensorEntry
from megatron_core.checkpoint.rectangle import Rectangle, whole
from tests.e2e.proof import FAMILIES, start_rank
from tests.rank_pool import run_ranks

ONEBIT = "--optimizer onebit-adam --onebit-freeze-step 4"
SECTIONS = ("onebit_worker", "onebit_server")


def _errors(rank: int, world_size: int, flags: str) -> list[Held]:
    run, _ = start_rank(rank, world_size, flags)
    held = held_with_errors(run.reducer.buckets, run.optimizer, with_optim=True)
    return [tensor for tensor in held if tensor.name.startswith(SECTIONS)]


def counted_parts(rank: int, world_size: int, flags: str) -> list[tuple[str, tuple[int, ...], Rectangle]]:
    held = _errors(rank, world_size, flags)
    assert all(tensor.values.shape == tensor.rectangle.shape and not tensor.replicated for tensor in held)
    return [(tensor.name, tensor.shape, tensor.rectangle) for tensor in held if tensor.counted]


@pytest.mark.parametrize(
    ("world_size", "layout"),
    [
        (8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
        (8, "--tensor-model-parallel-size 4 --make-vocab-size-divisible-by 128"),  # two ranks hold padding alone
    ],
)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_element_is_saved_once(family: str, world_size: int, layout: str) -> None:
    flags = f"{FAMILIES[family]} --global-batch-size 2 {ONEBIT} {layout}"
    parts: dict[tuple[str, tuple[int, ...]], list[Rectangle]] = defaultdict(list)
    for found in run_ranks(counted_parts, world_size, flags):
        for name, shape, rectangle in found:
            parts[name, shape].append(rectangle)
    assert {name.partition("/")[0] for name, _ in parts} == set(SECTIONS)
    for (name, shape), rectangles in parts.items():
        assert shape[0] == 2 or name.startswith("onebit_server")
        assert sum(rectangle.volume for rectangle in rectangles) == whole(shape).volume, name
        assert find_overlap(rectangles) is None, name


def test_values_are_the_storage_itself_and_only_with_the_optimizer() -> None:
    run, _ = start_rank(0, 1, f"{FAMILIES['gpt2']} {ONEBIT}")
    for tensor in held_with_errors(run.reducer.buckets, run.optimizer, with_optim=True):
        if tensor.name.startswith(SECTIONS):
            tensor.values.fill_(3.0)
    for bucket, errors in zip(run.reducer.buckets, run.optimizer.errors):
        n = bucket.slots[-1].stop
        assert errors.worker.eq(3.0).all() and errors.server[:n].eq(3.0).all() and not errors.server[n:].any()
    bare = held_with_errors(run.reducer.buckets, run.optimizer, with_optim=False)
    assert {tensor.name.partition("/")[0] for tensor in bare} == {"model"}


def _manifest(*entries: tuple[str, tuple[int, ...]]) -> Manifest:
    tensors = [TensorEntry(name=name, dtype="float32", shape=shape, pieces=()) for name, shape in entries]
    return Manifest(step=1, tensors=tensors, files=(), state={}, config={})


def _held(name: str, shape: tuple[int, ...]) -> Held:
    return Held(
        name=name, shape=shape, rectangle=whole(shape), values=torch.zeros(shape), counted=True, replicated=False
    )


def test_errors_of_another_dp_or_from_before_the_freeze_are_not_looked_for() -> None:
    worker, server, moment = _held("onebit_worker/w", (2, 5)), _held("onebit_server/w", (5,)), _held("adam_m/w", (5,))
    same = _manifest(("onebit_worker/w", (2, 5)), ("onebit_server/w", (5,)))
    other = _manifest(("onebit_worker/w", (4, 5)), ("onebit_server/w", (5,)))
    early = _manifest(("adam_m/w", (5,)))
    assert [has_no_place_in(same, held) for held in (worker, server, moment)] == [False, False, False]
    assert [has_no_place_in(other, held) for held in (worker, server, moment)] == [True, False, False]
    assert [has_no_place_in(early, held) for held in (worker, server, moment)] == [True, True, False]
    assert lost_errors(same, [worker]) is None and lost_errors(early, [worker]) is None
    assert lost_errors(other, [moment]) is None
    assert "those of dp 4; at dp 2 they start at zero" in str(lost_errors(other, [moment, worker]))
