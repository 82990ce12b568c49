# SPDX-License-Identifier: Apache-2.0
"""Activations by their published numbers, widths, and equality at any tp."""

import math

import pytest
import torch
import torch.nn.functional as F

from megatron_core.config.model import ModelConfig
from megatron_core.model.mlp import MLP
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import ALONE, assert_same, gathered_gradients, make_factory, randn, small

LINEAR = {"add_bias_linear": False}


def _activation(config: ModelConfig, value: float) -> float:
    """What the MLP makes of one number when its weights are identities."""
    mlp = MLP(make_factory(config), 0)
    with torch.no_grad():
        mlp.up.weights[0].copy_(torch.eye(32, dtype=torch.float64))
        mlp.down.weight.copy_(torch.eye(32, dtype=torch.float64))
        return mlp(torch.full((1, 1, 32), value, dtype=torch.float64))[0, 0, 0].item()


@pytest.mark.parametrize(
    "changes, at_1, at_2",
    [
        ({"gelu": "exact"}, 0.841345, 1.954500),
        ({"gelu": "tanh"}, 0.841192, 1.954598),
        ({"gelu": "auto"}, 0.841192, 1.954598),
        ({"gelu": "auto"} | LINEAR, 0.841345, 1.954500),
        ({"squared_relu": True}, 1.0, 4.0),
        ({"swiglu": True} | LINEAR, 1 / (1 + math.exp(-1)), 4 / (1 + math.exp(-2))),
    ],
)
def test_activations_at_1_and_2(changes: dict, at_1: float, at_2: float) -> None:
    config = small(ffn_hidden_size=32, **changes)
    assert _activation(config, 1.0) == pytest.approx(at_1, abs=1e-6)
    assert _activation(config, 2.0) == pytest.approx(at_2, abs=1e-6)


def test_squared_relu_drops_negative_numbers() -> None:
    assert _activation(small(ffn_hidden_size=32, squared_relu=True), -2.0) == 0.0


@pytest.mark.parametrize(
    "changes, width",
    [({}, 128), ({"swiglu": True}, 64), ({"swiglu": True, "hidden_size": 4096}, 10880), ({"ffn_hidden_size": 50}, 50)],
)
def test_widths(changes: dict, width: int) -> None:
    assert small(**changes).ffn_size == width


def test_gate_comes_before_up() -> None:
    mlp = MLP(make_factory(small(swiglu=True, **LINEAR)), 0)
    gate, up = mlp.up.weights[0]
    x = randn(4, 2, 32)
    expected = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), mlp.down.weight)
    torch.testing.assert_close(mlp(x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("changes", [{}, {"swiglu": True} | LINEAR, {"swiglu": True, "add_bias_linear": True}])
@ranks({"tp": 2}, {"tp": 4})
def test_equals_one_process(ctx: ParallelContext, changes: dict) -> None:
    x, upstream = randn(4, 2, 32), randn(4, 2, 32, seed=1)
    alone, cut = MLP(make_factory(small(**changes)), 0), MLP(make_factory(small(**changes), ctx), 0)
    expected, got = alone(x), cut(x)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    expected.backward(upstream)
    got.backward(upstream)
    assert_same(gathered_gradients(cut, ctx), gathered_gradients(alone, ALONE))
