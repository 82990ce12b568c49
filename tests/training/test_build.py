# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import numpy as np
import pytest
import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.training.build import (
    grad_dtype,
    initial_state,
    padding_elements,
)
from tests.e2e.proof import FAMILIES, config_of, start_rank, train_rank

GPT2 = FAMILIES["gpt2"]


@pytest.mark.parametrize(
    ("flags", "reduce_in_bf16", "expected"),
    [
        ({}, False, torch.float32),
        ({"fp16": True}, True, torch.float32),
        ({"bf16": True}, False, torch.float32),
        ({"bf16": True}, True, torch.bfloat16),
        ({"fp64": True}, False, torch.float64),
    ],
)
def test_gradients_are_wide_unless_asked_otherwise(
    flags: dict[str, bool], reduce_in_bf16: bool, expected: torch.dtype
) -> None:
    assert grad_dtype(OptimConfig(**flags), reduce_in_bf16) == expected  # type: ignore[arg-type]


def test_the_vocabulary_is_the_tokenizer_s() -> None:
    """61 ids, stored in 128 rows: the model knows 61, the rest is padding that no sum counts."""
    run, _ = start_rank(0, 1, f"{GPT2} --make-vocab-size-divisible-by 128")
    assert run.config.model.vocabulary == 61
    assert padding_elements([p for bucket in run.reducer.buckets for p in bucket.parameters]) == (128 - 61) * 32


@pytest.mark.parametrize(
    ("more", "scale"),
    [("", 1.0), ("--bf16", 1.0), ("--fp16", 2.0**32), ("--fp16 --loss-scale 128", 128.0)],
)
def test_a_run_starts_at_its_loss_scale(more: str, scale: float) -> None:
    state = initial_state(config_of(f"{GPT2} {more}", 1))
    assert (state.step, state.consumed_samples, state.loss_scale.scale) == (0, 0, scale)


@pytest.mark.parametrize("precision", ["", "--bf16", "--fp16 --initial-loss-scale 1024"])
@pytest.mark.parametrize("where", ["", "--optimizer-offload-directory {}"])
def test_an_offloaded_optimizer_gives_the_same_bits(precision: str, where: str, tmp_path: Path) -> None:
    """OPT-03 in whole steps: on the CPU the device's update and the host's are the same numbers."""
    flags = f"{GPT2} --global-batch-size 4 {precision}"
    offloaded = f"{flags} --optimizer-cpu-offload --offload-gradients device {where.format(tmp_path)}"
    _assert_same_bits(flags, offloaded)


@pytest.mark.parametrize("precision", ["", "--bf16", "--fp16 --initial-loss-scale 1024"])
def test_gradients_on_the_host_have_the_same_bits(precision: str) -> None:
    """Of one microbatch: a GEMM may round the sum of several otherwise than it is rounded outside of it."""
    flags = f"{GPT2} --micro-batch-size 4 --global-batch-size 4 {precision}"
    _assert_same_bits(flags, f"{flags} --optimizer-cpu-offload --offload-gradients host")


def _assert_same_bits(flags: str, offloaded: str) -> None:
    expected, found = train_rank(0, 1, flags, 4), train_rank(0, 1, offloaded, 4)
    assert (found.losses, found.norms) == (expected.losses, expected.norms)
    assert all(np.array_equal(found.weights[name], tensor) for name, tensor in expected.weights.items())
