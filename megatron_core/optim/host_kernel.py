# SPDX-License-Identifier: Apache-2.0
"""One pass of AdamW over flat fp32 tensors in host memory, compiled by numba: unscale, update, cast, each byte once.

torch's fused kernel takes its gradients in fp32 and scaled and leaves the cast of the weights to others, and each of
those is one more pass over memory. Here an element is read, updated and written in registers: 28 bytes a parameter and
those of its 16-bit copy. The arithmetic is that of torch's kernel, operation by operation, with the fused
multiply-adds where its compiler puts them, so that the numbers are the same to the bit. numba comes with the extra
`offload`; without it this module cannot be imported, and nothing but `host_adamw` does so.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from megatron_core.optim.adamw import AdamHyper, Moments

# What these two make takes other arguments than its type says.
_compiled: Any = njit(nogil=True, error_model="numpy")  # no cache on disk: where none can be written it fails
_intrinsic: Any = intrinsic

_F32, _I32, _I16 = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_BF16, _FP16 = types.uint16, types.int16  # numba has neither type: their bits, told apart by the sign
_BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
_Typed = tuple[Any, Callable[..., Any]]


@_intrinsic
def _fma(_: Any, a: Any, b: Any, c: Any) -> _Typed:
    """a·b + c, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), lambda _, builder, __, args: builder.fma(*args)


@_intrinsic
def _widened(_: Any, x: Any) -> _Typed:
    """A gradient of any of the three types in fp32."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        if x == _BF16:
            return builder.bitcast(builder.shl(builder.zext(args[0], _I32), _I32(16)), _F32)
        if x == _FP16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), _F32)
        return args[0]

    return types.float32(x), code


@_intrinsic
def _narrowed(_: Any, x: Any, target: Any) -> _Typed:
    """fp32 in the 16-bit type of the array `target`, rounded to nearest, ties to even."""

    def code(_: Any, builder: Any, __: Any, args: Any) -> Any:
        if target.dtype == _FP16:
            return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), _I16)
        bits = builder.bitcast(args[0], _I32)
        odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, _I32(0x7FFF))), _I32(16))
        nan = builder.fcmp_unordered("uno", args[0], args[0])  # rounding could carry its bits into a number
        return builder.trunc(builder.select(nan, _I32(0x7FC0), rounded), _I16)

    return target.dtype(types.float32, target), code


@_compiled
def _pass(
    w: Any, g: Any, m: Any, v: Any, out: Any, scale: Any, keep: Any, m_rate: Any, beta2: Any, v_rate: Any,
    v_correction: Any, eps: Any, step_size: Any,
) -> None:  # fmt: skip
    """Arrays [n] and numbers are fp32 but the gradients g and out, which may be 16-bit bits; out may be None."""
    for i in range(w.shape[0]):
        x = _widened(g[i]) / scale
        m[i] = _fma(m_rate, x - m[i], m[i])
        v[i] = _fma(v_rate * x, x, v[i] * beta2)
        w[i] = w[i] * keep + (-step_size * m[i]) / (np.sqrt(v[i]) / v_correction + eps)
        if out is not None:
            out[i] = _narrowed(w[i], out)


def one_pass(
    weights: torch.Tensor,
    grad: torch.Tensor,
    moments: Moments,
    out: torch.Tensor | None,
    hyper: AdamHyper,
    *,
    applied_steps: int,
    lr: float,
    weight_decay: float,
    grad_factor: float,
) -> Callable[[int, int], None]:
    """What updates elements [start, stop) of weights [n] and moments [n], fp32, by grad [n], fp32, bf16 or fp16.

    The new weights are also written to out [n], bf16 or fp16, where one is given. Each call works on its own thread
    and lets others run. `grad_factor` must not be 0; `grad` is left as it is.
    """
    count = applied_steps + 1.0
    arrays = [_array(tensor) for tensor in (weights, grad, moments.m, moments.v)]
    out_array = None if out is None else _array(out)
    numbers = (
        np.float32(1.0 / grad_factor),
        np.float32(1.0 - lr * weight_decay),
        np.float32(1.0 - hyper.beta1),
        np.float32(hyper.beta2),
        np.float32(1.0 - hyper.beta2),
        np.float32((1.0 - hyper.beta2**count) ** 0.5),
        np.float32(hyper.eps),
        np.float32(lr / (1.0 - hyper.beta1**count)),
    )

    def work(start: int, stop: int) -> None:
        out_range = None if out_array is None else out_array[start:stop]
        _pass(*(array[start:stop] for array in arrays), out_range, *numbers)

    return work


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a tensor; that of 16-bit numbers as bits."""
    return tensor.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy()
