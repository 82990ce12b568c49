# SPDX-License-Identifier: Apache-2.0
"""The three matrix products of a linear layer, for whatever the device does fastest.

A CPU without 16-bit dot products runs a bf16 GEMM several times slower than an fp32 one (measured: 45 against
153 GFLOP/s on Ice Lake). There the operands are widened, multiplied in fp32 and the result rounded once: the same
accumulation that native hardware performs, at fp32 speed.
"""

import functools

import torch
import torch.nn.functional as F

from megatron_core.parallel.fake_memory import is_fake

_ROWS_AT_ONCE = 1024  # of a product that is added to another dtype: few enough to stay in a core's cache


@functools.cache
def _cpu_has_16bit_gemm(dtype: torch.dtype) -> bool:
    capabilities = torch.cpu.get_capabilities()
    names = {torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"), torch.float16: ("amx_fp16", "avx512_fp16", "fp16")}
    return any(capabilities.get(name, False) for name in names[dtype])


def widened(*tensors: torch.Tensor) -> bool:
    """Whether products of these tensors are better taken in fp32 on their device."""
    first = tensors[0]
    if first.device.type != "cpu" or first.dtype not in (torch.bfloat16, torch.float16) or is_fake(first):
        return False
    return not _cpu_has_16bit_gemm(first.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., k] times weight [m, k] transposed, plus bias [m]: [..., m]."""
    if widened(x):
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
    return F.linear(x, weight, bias)


def input_gradient(grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """grad [..., m] times weight [m, k]: [..., k]."""
    if widened(grad):
        return (grad.float() @ weight.float()).to(grad.dtype)
    return grad @ weight


def weight_gradient(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """grad [n, m] transposed times x [n, k]: [m, k]."""
    if widened(grad):
        return (grad.float().t() @ x.float()).to(grad.dtype)
    return grad.t() @ x


def add_weight_gradient(total: torch.Tensor, grad: torch.Tensor, x: torch.Tensor) -> None:
    """Add grad [n, m] transposed times x [n, k] to total [m, k], in one GEMM where the dtypes allow it."""
    if total.dtype == grad.dtype:
        total.addmm_(grad.t(), x)
    elif widened(grad) and total.dtype == torch.float32:
        total.addmm_(grad.float().t(), x.float())
    elif total.device.type == "cpu" and not is_fake(total):
        for rows, columns in zip(total.split(_ROWS_AT_ONCE), grad.split(_ROWS_AT_ONCE, 1)):
            rows.add_(columns.t() @ x)
    else:
        total.add_(grad.t() @ x)
