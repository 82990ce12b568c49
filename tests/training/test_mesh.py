# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.training.mesh import grid_of, kv_replicas
from tests.e2e.proof import FAMILIES, config_of

GPT2 = FAMILIES["gpt2"]


def test_the_grid_of_a_layout() -> None:
    flags = f"{GPT2} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    grid = grid_of(config_of(flags, 8), 8)
    assert (grid.tp, grid.pp, grid.dp) == (2, 2, 2)
    other = grid_of(config_of(f"{flags} --use-tp-pp-dp-mapping", 8), 8)
    assert grid.members(0, "pp") == (0, 4) and other.members(0, "pp") == (0, 2)


@pytest.mark.parametrize(("groups", "tp", "replicas"), [(4, 1, 1), (4, 4, 1), (2, 4, 2), (1, 4, 4)])
def test_neighbours_with_the_same_keys(groups: int, tp: int, replicas: int) -> None:
    flags = f"{GPT2} --group-query-attention --num-query-groups {groups} --tensor-model-parallel-size {tp}"
    assert kv_replicas(config_of(flags, tp)) == replicas
