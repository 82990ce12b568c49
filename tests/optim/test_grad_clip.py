# SPDX-License-Identifier: Apache-2.0
"""Norms are taken in fp32, so that clipping survives 16-bit gradients; one factor serves all ranks."""

import math

import pytest
import torch

from megatron_core.optim.grad_clip import clip_factor, sum_of_squares
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext
from tests.rank_pool import ranks
from tests.small_model import randn

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def _norm(*tensors: torch.Tensor) -> float:
    return math.sqrt(sum_of_squares(tensors))


@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_do_not_overflow(dtype: torch.dtype) -> None:
    grad = torch.tensor([300.0], dtype=dtype)
    norm = _norm(grad)
    assert norm == 300.0
    assert (grad.float() * clip_factor(norm, 1.0)).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_million_small_entries(dtype: torch.dtype) -> None:
    assert _norm(torch.full((1_000_000,), 0.1, dtype=dtype)) == pytest.approx(100.0, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiny_16bit_gradients_do_not_vanish(dtype: torch.dtype) -> None:
    assert _norm(torch.full((4,), 1e-6, dtype=dtype)) == pytest.approx(2e-6, rel=5e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@ranks(2)
def test_over_ranks(ctx: ParallelContext, dtype: torch.dtype) -> None:
    grad = torch.tensor([(300.0, 400.0)[ctx.rank]], dtype=dtype)
    squares = torch.tensor([sum_of_squares([grad])], dtype=torch.float64)
    norm = all_reduce(squares, ctx.world).sqrt().item()
    assert norm == pytest.approx(500.0, rel=1e-3)
    assert (grad.float() * clip_factor(norm, 1.0)).item() == pytest.approx((0.6, 0.8)[ctx.rank], abs=1e-3)


def test_tensors_add_up_like_one() -> None:
    whole = randn(1000)
    assert sum_of_squares(whole.split(77)) == pytest.approx(float(whole.square().sum()), rel=1e-14)
    assert sum_of_squares([]) == 0.0


def test_matches_torch_clipping() -> None:
    parameter = torch.nn.Parameter(torch.zeros(100, dtype=torch.float64))
    parameter.grad = randn(100)
    expected = parameter.grad * clip_factor(_norm(parameter.grad), 1.0)
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    torch.testing.assert_close(parameter.grad, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("norm, limit, factor", [(0.5, 1.0, 1.0), (0.0, 1.0, 1.0), (4.0, 0.0, 1.0), (4.0, 1.0, 0.25)])
def test_factors(norm: float, limit: float, factor: float) -> None:
    assert clip_factor(norm, limit) == pytest.approx(factor, abs=1e-6)


def test_an_infinite_or_missing_norm_shows() -> None:
    assert math.isinf(_norm(torch.tensor([math.inf, 1.0]))) and math.isnan(_norm(torch.tensor([math.nan, 1.0])))


@pytest.mark.parametrize("length", [1, 2**16, 2**16 + 1, 3 * 10**6])
def test_a_large_bucket_s_squares_are_added_up_exactly(length: int) -> None:
    values = torch.randn(length, generator=torch.Generator().manual_seed(1)) * 1e-3
    assert sum_of_squares([values]) == pytest.approx(float(values.double().square().sum()), rel=2e-6)
