# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"global_batch_size": 10}, "10 is not a multiple of --micro-batch-size 2 x 2 data-parallel ranks = 4: set 8"),
        ({"global_batch_size": 1}, "--micro-batch-size 2 x 2 data-parallel ranks = 4: set 4"),
        ({"global_batch_size": 16, "rampup_batch_size": (2, 4, 9)}, "starts at 2, which is not a positive multiple of"),
        ({"global_batch_size": 16, "rampup_batch_size": (4, 3, 9)}, "grows by 3, which is not a positive multiple of"),
        ({"global_batch_size": 16, "rampup_batch_size": (20, 4, 9)}, "starts at 20, above --global-batch-size 16"),
        ({"global_batch_size": 16, "rampup_batch_size": (8, 12, 9)}, "cannot grow from 8 to --global-batch-size 16 by"),
        ({"train_iters": None}, "--train-iters or --train-samples is required"),
        ({"train_samples": 5}, "--train-iters 100 and --train-samples 5 exclude each other: choose one"),
        ({"train_iters": None, "train_samples": 3}, "--train-samples 3 is less than the first batch, 4: no step"),
        ({"profile": True, "profile_step_start": 12}, "--profile-step-end 12 must be after --profile-step-start 12"),
        ({"profile": True, "profile_ranks": (1, 2)}, "--profile-ranks 2: the world has 2 ranks, 0 to 1"),
        ({"eval_tasks": ("piqa",)}, "--eval-tasks takes NAME=FILE, not 'piqa'"),
        ({"eval_tasks_limit": 3}, "--eval-tasks-limit 3 has no effect without --eval-tasks: leave it out"),
    ],
)  # fmt: skip
def test_each_rule(complaints, values, part):
    (message,) = complaints(2, **values)
    assert part in message


@pytest.mark.parametrize(
    "values",
    [
        {"global_batch_size": 16, "rampup_batch_size": (4, 4, 0)},
        {"train_iters": None, "train_samples": 1000},
        {"train_iters": None, "train_samples": 4, "global_batch_size": 16, "rampup_batch_size": (4, 4, 9)},
        {"profile_ranks": (7,)},  # nothing is profiled
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(2, **values) == []
