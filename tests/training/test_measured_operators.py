# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.training import measured_operators
from megatron_core.training.measured_operators import measure_matmuls, measure_operators

WORDS = "LayerNorm RMSNorm residual gelu_tanh gelu_exact squared_relu swiglu rotary dropout embedding attention bias"
NAMES = {*WORDS.split(), "attention with dropout", "cross entropy"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"TOKENS": (4, 16), "SEQUENCES": (8,), "PARAMETERS": (1000,), "ROWS": (8, 16), "FEATURES": (8, 16, 32)}
    for name, value in ({"_SECONDS": 0.0} | sizes).items():
        monkeypatch.setattr(measured_operators, name, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_names_are_timed_forward_and_backward(dtype: torch.dtype) -> None:
    found = {(one.name, one.amount): one.seconds for one in measure_operators(dtype)}
    assert all(seconds > 0 for seconds in found.values())
    names = {name for name, _ in found}
    expected = {name + " backward" for name in NAMES} | (NAMES - {"bias"}) | {"update", "clear"}
    assert names == expected
    assert ("gelu_tanh", 4 * 256) in found and ("attention", 4 * 8 * 8 * (64 + 32)) in found


def test_three_products_of_each_linear_are_timed() -> None:
    found = list(measure_matmuls(torch.float32))
    shapes = {(one.m, one.n, one.k) for one in found}
    assert {(8, 16, 32), (8, 32, 16), (16, 32, 8)} <= shapes
    assert all(one.tflops > 0 for one in found) and len(found) == 3 * (2 * 3 * 3 + 1)
