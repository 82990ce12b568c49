# SPDX-License-Identifier: Apache-2.0
"""Which heads and groups a rank holds, also with more ranks than groups."""

import pytest
import torch

from megatron_core.model.attention_layer import build_attention
from megatron_core.parallel.context import Group, ParallelContext
from megatron_core.parallel.rank_grid import RankGrid
from tests.small_model import make_factory, small


def _qkv(groups: int, tp: int, coordinate: int) -> list[torch.nn.Parameter]:
    group = Group("tp", tuple(range(tp)), coordinate)
    ctx = ParallelContext(grid=RankGrid(tp=tp), rank=coordinate, device=torch.device("cpu"), groups={"tp": group})
    config = small(group_query_attention=True, num_query_groups=groups)
    return list(build_attention(make_factory(config, ctx), 3).qkv.weights)


@pytest.mark.parametrize(
    "groups, tp, held",
    [
        (4, 2, [(0, 2), (2, 4)]),
        (2, 2, [(0, 1), (1, 2)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (1, 4, [(0, 1)] * 4),
    ],
)
def test_groups_held(groups: int, tp: int, held: list[tuple[int, int]]) -> None:
    specs = [_qkv(groups, tp, rank)[1].spec for rank in range(tp)]
    assert [(spec.start, spec.stop) for spec in specs] == held
    assert [spec.counted for spec in specs] == [held.index(piece) == rank for rank, piece in enumerate(held)]
    assert {spec.partial for spec in specs} == {"kv" if tp > groups else None}


def test_query_heads_are_cut_evenly_and_meet_their_groups() -> None:
    for rank in range(4):
        q, kv = _qkv(2, 4, rank)
        assert q.shape == (1, 8, 32) and kv.shape == (1, 2, 8, 32)
        assert q.spec.start // 2 == kv.spec.start


def test_names_and_global_shapes() -> None:
    config = small(qk_layernorm=True, kv_channels=16)
    attention = build_attention(make_factory(config), 3)
    shapes = {p.spec.name: p.spec.shape for p in attention.parameters()}
    assert shapes == {
        "layers.3.attention.q.weight": (4, 16, 32),
        "layers.3.attention.q.bias": (4, 16),
        "layers.3.attention.kv.weight": (4, 2, 16, 32),
        "layers.3.attention.kv.bias": (4, 2, 16),
        "layers.3.attention.output.weight": (32, 4, 16),
        "layers.3.attention.output.bias": (32,),
        "layers.3.attention.q_norm.weight": (16,),
        "layers.3.attention.q_norm.bias": (16,),
        "layers.3.attention.k_norm.weight": (16,),
        "layers.3.attention.k_norm.bias": (16,),
    }


@pytest.mark.parametrize(
    "changes, biases",
    [({}, 3), ({"add_bias_linear": False}, 0), ({"add_bias_linear": False, "add_qkv_bias": True}, 2)],
)
def test_biases(changes: dict, biases: int) -> None:
    parameters = list(build_attention(make_factory(small(**changes)), 0).parameters())
    assert sum(p.spec.name.endswith("bias") for p in parameters) == biases
    assert all(p.spec.decayed == p.spec.name.endswith("weight") for p in parameters)
