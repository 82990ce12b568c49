# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
import torch.nn.functional as F

from megatron_core.kernels import matmul, packed_weight
from megatron_core.kernels.packed_weight import pack


@pytest.mark.parametrize("rows", [(1,), (8,), (3, 70)])
def test_products_are_those_of_the_weight(rows: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(53, 24, generator=generator), torch.randn(53, generator=generator)
    x = torch.randn(*rows, 24, generator=generator)
    packed = pack(weight)
    assert packed is not None
    torch.testing.assert_close(packed.linear(x, bias), F.linear(x, weight, bias), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(packed.linear(x, None), F.linear(x, weight), rtol=1e-5, atol=1e-5)


def test_16_bit_weights_are_widened_once_where_their_products_are(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(16, 24).bfloat16(), torch.randn(4, 24).bfloat16()
    for has in (False, True):
        monkeypatch.setattr(matmul, "_cpu_has_16bit_gemm", lambda dtype, has=has: has)
        packed = pack(weight)
        assert (packed is None) == has
        if packed is not None:
            y = packed.linear(x, None)
            assert y.dtype == torch.bfloat16
            torch.testing.assert_close(y, matmul.linear(x, weight), rtol=0.01, atol=1e-3)


def test_weights_that_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pack(torch.randn(4, 4, dtype=torch.float64)) is None
    assert pack(torch.empty(4, 4, device="meta")) is None
    monkeypatch.setattr(packed_weight.torch.ops, "mkldnn", object(), raising=False)
    assert pack(torch.randn(4, 4)) is None
