# SPDX-License-Identifier: Apache-2.0
"""The compiled pass against torch, bit by bit: update, ranges, and the casts at the edges of the 16-bit types."""

import pytest
import torch

pytest.importorskip("llvmlite", reason="llvmlite, of the extra `offload`, is not installed")

from megatron_core.optim.adamw import AdamHyper, Moments, adamw_update
from megatron_core.optim.host_adamw import BLOCK
from megatron_core.optim.host_kernel import one_pass
from tests.small_model import randn

HYPER = AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8)
NUMBERS = {"lr": 1e-3, "weight_decay": 0.1, "grad_factor": 0.3}
STILL = {"applied_steps": 0, "lr": 0.0, "weight_decay": 0.0, "grad_factor": 1.0}
EDGES = [
    0.0,
    -0.0,
    1.0,
    1 + 2**-8,
    1 + 3 * 2**-8,
    1 + 2**-11,
    1 + 3 * 2**-11,
    65504.0,
    65520.0,
    3.4e38,
    1e-8,
    2.0**-133,
]
SPECIAL = [float("inf"), float("-inf"), float("nan")]


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="torch without vectors rounds otherwise",
)
def test_a_vector_has_torchs_bits_and_the_gradient_stays() -> None:
    ours, theirs = randn(64).float(), randn(64).float()
    our_moments, their_moments = [Moments(torch.zeros(64), torch.zeros(64)) for _ in range(2)]
    for step in range(3):
        grad = randn(64, seed=step).float()
        kept = grad.clone()
        one_pass(ours, grad, our_moments, None, HYPER, applied_steps=step, **NUMBERS)(0, 64)
        assert torch.equal(grad, kept)
        adamw_update(theirs, grad, their_moments, HYPER, applied_steps=step, **NUMBERS)
    assert torch.equal(ours, theirs)
    assert torch.equal(our_moments.v, their_moments.v)


def test_only_the_range_is_touched() -> None:
    n = 4 * BLOCK
    weights, out = torch.ones(n), torch.zeros(n, dtype=torch.bfloat16)
    moments = Moments(torch.zeros(n), torch.zeros(n))
    one_pass(weights, torch.ones(n), moments, out, HYPER, applied_steps=0, **NUMBERS)(BLOCK, 3 * BLOCK)
    expected = [False] * BLOCK + [True] * 2 * BLOCK + [False] * BLOCK
    for tensor, untouched in ((weights, 1.0), (moments.m, 0.0), (moments.v, 0.0), (out, 0.0)):
        assert [value != untouched for value in tensor.tolist()] == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_cast_as_torch_casts_them(dtype: torch.dtype) -> None:
    numbers = EDGES + SPECIAL
    weights = torch.tensor([1.0] * (BLOCK - len(numbers)) + numbers)
    moments = Moments(torch.zeros_like(weights), torch.zeros_like(weights))
    out = torch.zeros(len(weights), dtype=dtype)
    one_pass(weights, torch.zeros_like(out), moments, out, HYPER, **STILL)(0, len(weights))
    assert torch.equal(out[:-1].view(torch.int16), weights[:-1].to(dtype).view(torch.int16))
    assert out[-1].isnan()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_widened_exactly(dtype: torch.dtype) -> None:
    grad = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)  # every number that there is
    moments = Moments(torch.zeros(2**16), torch.zeros(2**16))
    hyper = AdamHyper(beta1=0.0, beta2=0.0, eps=1.0)  # then m is the gradient
    one_pass(torch.zeros(2**16), grad, moments, torch.zeros_like(grad), hyper, **STILL)(0, 2**16)
    torch.testing.assert_close(moments.m, grad.float(), rtol=0, atol=0, equal_nan=True)
