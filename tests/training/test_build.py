# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from itertools import islice

import pytest
import torch

from megatron_core.config.optim import OptimConfig
from megatron_core.errors import DataError
from megatron_core.parallel.context import Group, ParallelContext, single_process_context
from megatron_core.training.batch_schedule import BatchSchedule, Stage
from megatron_core.training.build import (
    grad_dtype,
    initial_state,
    open_data,
    open_loader,
    padding_elements,
    training_plans,
)
from tests.e2e.proof import FAMILIES, config_of, start_rank

GPT2 = FAMILIES["gpt2"]


def at(tp: tuple[int, int] = (0, 1), pp: tuple[int, int] = (0, 1), dp: tuple[int, int] = (0, 1)) -> ParallelContext:
    """A context at these (coordinate, size)s, without process groups."""
    axes = {"tp": tp, "pp": pp, "dp": dp}
    groups = {name: Group(name, tuple(range(size)), coordinate) for name, (coordinate, size) in axes.items()}
    return replace(single_process_context(), groups=groups)


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


def test_plans_follow_a_ramp_from_any_point() -> None:
    config = config_of(GPT2, 2)
    ramp = BatchSchedule((Stage(0, 2), Stage(4, 4), Stage(8, 6)))
    plans = list(islice(training_plans(config, at(dp=(1, 2)), ramp, 0), 4))
    assert plans == [((1,),), ((3,),), ((5, ), (7,)), ((9,), (11,), (13,))]  # fmt: skip
    assert list(islice(training_plans(config, at(dp=(1, 2)), ramp, 8), 1)) == plans[3:]


@pytest.mark.parametrize(
    ("ctx", "more", "reads"),
    [
        (at(), "", True),
        (at(tp=(1, 2)), "", False),
        (at(pp=(0, 3)), "", True),
        (at(pp=(1, 3)), "", False),
        (at(pp=(2, 3)), "", True),
        (at(pp=(1, 3)), "--reset-position-ids", True),
        (at(pp=(1, 3), tp=(1, 2)), "--reset-attention-mask", False),
    ],
)
def test_who_reads_data(ctx: ParallelContext, more: str, reads: bool) -> None:
    config = config_of(f"{GPT2} {more}", 1)
    data = open_data(config)
    assert (open_loader(config, ctx, data, data.datasets.train, iter([])) is not None) == reads


def test_the_vocabulary_is_the_tokenizer_s() -> None:
    """61 ids, stored in 128 rows: the model knows 61, the rest is padding that no sum counts."""
    run, _ = start_rank(0, 1, f"{GPT2} --make-vocab-size-divisible-by 128")
    assert run.config.model.vocabulary == 61
    assert padding_elements([p for bucket in run.reducer.buckets for p in bucket.parameters]) == (128 - 61) * 32


def test_missing_data_is_found_before_anything_is_built() -> None:
    with pytest.raises(DataError, match="nowhere"):
        open_data(config_of("--data-path /nowhere --tokenizer-type ByteTokenizer", 1))


@pytest.mark.parametrize(
    ("more", "scale"),
    [("", 1.0), ("--bf16", 1.0), ("--fp16", 2.0**32), ("--fp16 --loss-scale 128", 128.0)],
)
def test_a_run_starts_at_its_loss_scale(more: str, scale: float) -> None:
    state = initial_state(config_of(f"{GPT2} {more}", 1))
    assert (state.step, state.consumed_samples, state.loss_scale.scale) == (0, 0, scale)
