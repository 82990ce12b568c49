# SPDX-License-Identifier: Apache-2.0
"""One pass of AdamW over flat fp32 tensors in host memory, compiled by LLVM: unscale, update, cast, each byte once.

torch's fused kernel takes its gradients in fp32 and scaled and leaves the cast of the weights to others, and each of
those is one more pass over memory. Here an element is read, updated and written in registers: 28 bytes a parameter and
those of its 16-bit copy. The arithmetic is that of torch's kernel, operation by operation, with the fused
multiply-adds where its compiler puts them, so that the numbers are the same to the bit. The loop is written down in
LLVM's terms, `BLOCK` elements at once, and compiled for the processor at hand in a tenth of a second; users' machines
need no compiler. llvmlite comes with the extra `offload`; nothing but `host_adamw` imports this module.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch
from llvmlite import binding, ir

from megatron_core.optim.adamw import AdamHyper, Moments
from megatron_core.optim.host_adamw import BLOCK

_F32, _I16, _I32, _I64, _POINTER = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.PointerType()
_FLOATS, _SHORTS, _INTS = (ir.VectorType(element, BLOCK) for element in (_F32, _I16, _I32))
_HALVES = ir.VectorType(ir.HalfType(), BLOCK)
_ARRAYS, _NUMBERS = 5, 8


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

    The new weights are also written to out [n], bf16 or fp16, where one is given. start and stop are multiples of
    `BLOCK`. Each call works on its own thread and lets others run. `grad_factor` must not be 0; `grad` stays as it is.
    """
    function = _compiled(grad.dtype, None if out is None else out.dtype)
    arrays = (weights, grad, moments.m, moments.v, out)
    count = applied_steps + 1.0
    numbers = (
        1.0 / grad_factor,
        1.0 - lr * weight_decay,
        1.0 - hyper.beta1,
        hyper.beta2,
        1.0 - hyper.beta2,
        (1.0 - hyper.beta2**count) ** 0.5,
        hyper.eps,
        -lr / (1.0 - hyper.beta1**count),
    )  # in double precision, as torch has them; the call rounds them to fp32

    def work(start: int, stop: int) -> None:
        assert start % BLOCK == 0 and stop % BLOCK == 0, "the kernel knows whole blocks only"
        addresses = [0 if t is None else t.data_ptr() + start * t.element_size() for t in arrays]
        function(stop - start, *addresses, *numbers)

    return work


@functools.cache
def _compiled(grad_dtype: torch.dtype, out_dtype: torch.dtype | None) -> Callable[..., None]:
    """Machine code of `_module` for this processor: (n, addresses of the five arrays, eight numbers)."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(_module(grad_dtype, out_dtype))), machine)
    engine.finalize_object()
    arguments = [ctypes.c_int64, *[ctypes.c_void_p] * _ARRAYS, *[ctypes.c_float] * _NUMBERS]
    function = ctypes.CFUNCTYPE(None, *arguments)(engine.get_function_address("one_pass"))
    return functools.partial(_call, engine, function)


def _call(_: Any, function: Callable[..., None], *arguments: float) -> None:
    """Call code that lives as long as the engine, which is held beside it."""
    function(*arguments)


def _module(grad_dtype: torch.dtype, out_dtype: torch.dtype | None) -> ir.Module:
    """for i in range(0, n, BLOCK): load a block of each array, update, store."""
    module = ir.Module("host_adamw")
    module.triple = binding.get_default_triple()
    signature = ir.FunctionType(ir.VoidType(), [_I64] + [_POINTER] * _ARRAYS + [_F32] * _NUMBERS)
    function = ir.Function(module, signature, "one_pass")
    begin, loop, end = (function.append_basic_block(name) for name in ("begin", "loop", "end"))
    n, arrays = function.args[0], function.args[1 : 1 + _ARRAYS]
    build = ir.IRBuilder(begin)
    numbers = [_in_all_lanes(build, number) for number in function.args[1 + _ARRAYS :]]
    build.cbranch(build.icmp_signed(">", n, _I64(0)), loop, end)
    build.position_at_end(loop)
    i = build.phi(_I64)
    i.add_incoming(_I64(0), begin)
    _block(build, i, arrays, numbers, grad_dtype, out_dtype)
    following = build.add(i, _I64(BLOCK))
    i.add_incoming(following, loop)
    build.cbranch(build.icmp_signed("<", following, n), loop, end)
    build.position_at_end(end)
    build.ret_void()
    return module


def _block(
    build: Any, i: Any, arrays: Any, numbers: Any, grad_dtype: torch.dtype, out_dtype: torch.dtype | None
) -> None:
    """The rule, on `BLOCK` elements from i."""
    weights, grad, m, v, out = arrays
    scale, keep, m_rate, beta2, v_rate, v_correction, eps, step = numbers
    fma = build.module.declare_intrinsic(f"llvm.fma.v{BLOCK}f32", (), ir.FunctionType(_FLOATS, [_FLOATS] * 3))
    sqrt = build.module.declare_intrinsic(f"llvm.sqrt.v{BLOCK}f32", (), ir.FunctionType(_FLOATS, [_FLOATS]))

    def address(array: Any, element: Any) -> Any:
        return build.gep(array, [i], source_etype=element)

    def load(array: Any) -> Any:
        return build.load(address(array, _F32), align=4, typ=_FLOATS)

    def store(value: Any, array: Any) -> None:
        build.store(value, address(array, _F32), align=4)

    if grad_dtype == torch.float32:
        widened = load(grad)
    else:
        widened = _widened(build, build.load(address(grad, _I16), align=2, typ=_SHORTS), grad_dtype)
    x = build.fdiv(widened, scale)
    old = load(m)
    new_m = build.call(fma, [m_rate, build.fsub(x, old), old])
    store(new_m, m)
    new_v = build.call(fma, [build.fmul(v_rate, x), x, build.fmul(load(v), beta2)])
    store(new_v, v)
    spread = build.fadd(build.fdiv(build.call(sqrt, [new_v]), v_correction), eps)
    new_weights = build.fadd(build.fmul(load(weights), keep), build.fdiv(build.fmul(step, new_m), spread))
    store(new_weights, weights)
    if out_dtype is not None:
        build.store(_narrowed(build, new_weights, out_dtype), address(out, _I16), align=2)


def _widened(build: Any, bits: Any, dtype: torch.dtype) -> Any:
    """Numbers of a 16-bit type in fp32."""
    if dtype == torch.float16:
        return build.fpext(build.bitcast(bits, _HALVES), _FLOATS)
    return build.bitcast(build.shl(build.zext(bits, _INTS), _same(16)), _FLOATS)


def _narrowed(build: Any, floats: Any, dtype: torch.dtype) -> Any:
    """fp32 as the bits of a 16-bit type, rounded to nearest, ties to even."""
    if dtype == torch.float16:
        return build.bitcast(build.fptrunc(floats, _HALVES), _SHORTS)
    bits = build.bitcast(floats, _INTS)
    odd = build.and_(build.lshr(bits, _same(16)), _same(1))
    rounded = build.lshr(build.add(bits, build.add(odd, _same(0x7FFF))), _same(16))
    nan = build.fcmp_unordered("uno", floats, floats)  # rounding could carry its bits into a number
    return build.trunc(build.select(nan, _same(0x7FC0), rounded), _SHORTS)


def _same(number: int) -> Any:
    return ir.Constant(_INTS, [number] * BLOCK)


def _in_all_lanes(build: Any, number: Any) -> Any:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    return build.shuffle_vector(build.insert_element(nothing, number, _I32(0)), nothing, _same(0))
