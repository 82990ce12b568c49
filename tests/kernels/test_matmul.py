# SPDX-License-Identifier: Apache-2.0
"""The three products of a linear layer against float64, whatever the dtype; widening does not change their rounding."""

import pytest
import torch

from megatron_core.kernels import matmul

N, K, M = 6, 16, 10
TOLERANCE = {torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def _operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [n, k], weight [m, k], bias [m], grad [n, m] in `dtype`."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(N, K), (M, K), (M,), (N, M)]
    x, weight, bias, grad = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias, grad


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_products_match_float64(dtype: torch.dtype) -> None:
    x, weight, bias, grad = _operands(dtype)
    wx, ww, wb, wg = (t.double() for t in (x, weight, bias, grad))
    total = torch.ones(M, K, dtype=dtype)
    matmul.add_weight_gradient(total, grad, x)
    pairs = [
        (matmul.linear(x, weight, bias), wx @ ww.t() + wb),
        (matmul.linear(x, weight), wx @ ww.t()),
        (matmul.input_gradient(grad, weight), wg @ ww),
        (matmul.weight_gradient(grad, x), wg.t() @ wx),
        (total, 1 + wg.t() @ wx),
    ]
    for got, expected in pairs:
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16bit_gradients_add_up_in_fp32(dtype: torch.dtype) -> None:
    x, _, _, grad = _operands(dtype)
    total = torch.full((M, K), 1000.0)
    for _ in range(3):
        matmul.add_weight_gradient(total, grad, x)
    expected = 1000 + 3 * (grad.double().t() @ x.double())
    # A single rounding of a product to 16 bits, or of the sum, would be far outside this.
    tolerance = 1e-6 if matmul.widened(grad) else TOLERANCE[dtype] / 100
    torch.testing.assert_close(total.double(), expected, rtol=tolerance, atol=0)


def test_many_rows_of_a_weight_are_added_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_ROWS_AT_ONCE", 4)
    x, _, _, grad = _operands(torch.bfloat16)
    total = torch.ones(M, K)
    matmul.add_weight_gradient(total, grad, x)
    expected = 1 + grad.double().t() @ x.double()
    torch.testing.assert_close(total.double(), expected, rtol=TOLERANCE[torch.bfloat16], atol=0.05)


def test_widening_multiplies_in_fp32_and_rounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_cpu_has_16bit_gemm", lambda dtype: False)
    x, weight, bias, grad = _operands(torch.bfloat16)
    assert matmul.widened(x, weight)
    exact = (x.float() @ weight.float().t() + bias.float()).bfloat16()
    torch.testing.assert_close(matmul.linear(x, weight, bias), exact, rtol=0, atol=2**-8)
    assert torch.equal(matmul.input_gradient(grad, weight), (grad.float() @ weight.float()).bfloat16())
    assert torch.equal(matmul.weight_gradient(grad, x), (grad.float().t() @ x.float()).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_types_are_left_alone(dtype: torch.dtype) -> None:
    assert not matmul.widened(torch.zeros(1, dtype=dtype))
