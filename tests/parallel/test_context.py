# SPDX-License-Identifier: Apache-2.0
"""A rank alone is a member of every group, with coordinate 0 and no process group."""

import dataclasses

import pytest
import torch

from megatron_core.parallel.context import Group, ParallelContext, single_process_context
from megatron_core.parallel.rank_grid import RankGrid


@pytest.mark.parametrize("name", ["tp", "dp", "pp", "world"])
def test_alone_every_group_is_a_group_of_one(name: str) -> None:
    ctx = single_process_context()
    group: Group = getattr(ctx, name)
    assert group == Group(name, (0,), 0) and group.size == 1 and group.handle is None
    assert ctx.is_first_stage and ctx.is_last_stage


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_stages_come_from_the_pipeline_group(stage: int) -> None:
    groups = {"pp": Group("pp", (0, 1, 2), stage)}
    ctx = ParallelContext(grid=RankGrid(pp=3), rank=stage, device=torch.device("cpu"), groups=groups)
    assert (ctx.is_first_stage, ctx.is_last_stage) == (stage == 0, stage == 2)


def test_a_context_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        single_process_context().rank = 1  # type: ignore[misc]
