# SPDX-License-Identifier: Apache-2.0
"""AdamW against its formula and torch's own, with the gradient's factor folded in."""

import pytest
import torch

from megatron_core.optim.adamw import AdamHyper, Moments, adamw_update
from tests.small_model import randn

HYPER = AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8)
TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-12}


def _moments(weights: torch.Tensor) -> Moments:
    return Moments(torch.zeros_like(weights), torch.zeros_like(weights))


def _step(
    weights: torch.Tensor, grad: torch.Tensor, moments: Moments, step: int, factor: float = 1.0, **changes: float
):
    options = {"lr": 0.1, "weight_decay": 0.0} | changes
    adamw_update(weights, grad.clone(), moments, HYPER, applied_steps=step, grad_factor=factor, **options)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_matches_torch(dtype: torch.dtype, weight_decay: float) -> None:
    weights = randn(200).to(dtype)
    parameter = torch.nn.Parameter(weights.clone())
    reference = torch.optim.AdamW([parameter], lr=0.01, betas=(0.9, 0.95), weight_decay=weight_decay, foreach=False)
    moments = _moments(weights)
    for step in range(10):
        grad = randn(200, seed=step).to(dtype)
        _step(weights, grad, moments, step, lr=0.01, weight_decay=weight_decay)
        parameter.grad = grad
        reference.step()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(weights, parameter.detach(), rtol=tolerance, atol=tolerance)


def test_matches_the_formula_in_float64() -> None:
    weights, expected = randn(50), randn(50)
    moments, m, v = _moments(weights), torch.zeros_like(expected), torch.zeros_like(expected)
    for step in range(1, 6):
        grad = randn(50, seed=step)
        _step(weights, grad, moments, step - 1, lr=0.01, weight_decay=0.1)
        m, v = 0.9 * m + 0.1 * grad, 0.95 * v + 0.05 * grad**2
        expected = expected * (1 - 0.01 * 0.1)
        expected = expected - 0.01 * (m / (1 - 0.9**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
    torch.testing.assert_close(weights, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.m, m, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.v, v, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_step_count_decides_bias_correction(dtype: torch.dtype) -> None:
    weights = torch.ones(1, dtype=dtype)
    moments = _moments(weights)
    expected = [0.9, 0.8, 0.7]
    for step in range(3):
        _step(weights, torch.ones(1, dtype=dtype), moments, step)
        assert weights.item() == pytest.approx(expected[step], abs=1e-6)


def test_a_first_step_taken_as_the_second_would_be_seen() -> None:
    weights = torch.ones(1)
    hyper = AdamHyper(beta1=0.9, beta2=0.999, eps=1e-8)
    adamw_update(
        weights, torch.ones(1), _moments(weights), hyper, applied_steps=1, lr=0.1, weight_decay=0.0, grad_factor=1.0
    )
    assert weights.item() == pytest.approx(0.925586, abs=1e-6)


@pytest.mark.parametrize("factor", [0.3, 1 / 1024, 2.0])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_factor_multiplies_the_gradient(dtype: torch.dtype, factor: float) -> None:
    folded, multiplied = randn(200).to(dtype), randn(200).to(dtype)
    one, other = _moments(folded), _moments(multiplied)
    for step in range(3):
        grad = randn(200, seed=step).to(dtype)
        _step(folded, grad, one, step, factor)
        _step(multiplied, grad * factor, other, step)
    tolerance = 10 * TOLERANCE[dtype]
    torch.testing.assert_close(one.m, other.m, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.v, other.v, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(folded, multiplied, rtol=10 * tolerance, atol=10 * tolerance)


def test_decay_does_not_pass_through_the_moments() -> None:
    weights = torch.full((3,), 2.0)
    moments = _moments(weights)
    _step(weights, torch.zeros(3), moments, 0, weight_decay=0.5)
    assert weights.tolist() == pytest.approx([2.0 * (1 - 0.1 * 0.5)] * 3)
    assert not moments.m.any() and not moments.v.any()


def test_a_factor_of_zero_is_a_zero_gradient() -> None:
    weights, grad = torch.ones(4), torch.ones(4)
    moments = Moments(torch.zeros(4), torch.zeros(4))
    adamw_update(
        weights,
        grad,
        moments,
        AdamHyper(0.9, 0.999, 1e-8),
        applied_steps=0,
        lr=0.1,
        weight_decay=0.0,
        grad_factor=0.0,
    )
    assert torch.equal(weights, torch.ones(4))
