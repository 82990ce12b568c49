# SPDX-License-Identifier: Apache-2.0
"""AdamW on flat tensors in host memory (the host optimizer of ZeRO-Offload, Ren et al., arXiv:2101.06840 section 5.1).

The rule is bound by memory, so everything that is done to an element (unscaling, clipping, update, cast to the type of
the device's weights) is done while it is at hand, by `host_kernel`. Threads take tile after tile, so that one which is
held up elsewhere delays nobody. Where llvmlite is not installed, for float64, and where a probe finds the kernel to
round otherwise than torch does here, `adamw_update` and a cast do the work in passes of their own. Either way the
result is that of `adamw_update`, to the bit.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch

from megatron_core.kernels.precision import at_least_fp32
from megatron_core.optim.adamw import AdamHyper, Moments, adamw_update
from megatron_core.parallel.fake_memory import only_fakes_are_made

_TILE = 2**19
"""Elements that a thread takes at a time: some 0.3 ms of work, beside which a call costs little."""
BLOCK = 32
"""Elements that the kernel works on at once. It is given whole blocks and torch what remains: torch's kernel rounds
the part of a tensor that does not fill a vector otherwise, and a block is a multiple of its vectors."""
_PROBE = 2**12


class OnePass(Protocol):
    """`host_kernel.one_pass`."""

    def __call__(
        self,
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
        """What updates a range of elements."""


def compiled_pass() -> OnePass | None:
    """The compiled kernel, or None where llvmlite is not installed or there is no memory to run it on."""
    if only_fakes_are_made():
        return None
    try:
        from megatron_core.optim.host_kernel import one_pass
    except ImportError:
        return None
    return one_pass


class HostAdamW:
    """The rule with its threads."""

    def __init__(self, hyper: AdamHyper, *, threads: int, kernel: OnePass | None) -> None:
        """`threads`: how many share the work of the compiled kernel; torch has its own. `kernel`: `compiled_pass()`."""
        self._hyper = hyper
        self._kernel = kernel
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="host-adamw")
        self._threads = threads
        self._exact: dict[tuple[torch.dtype, torch.dtype | None], bool] = {}
        """What the probe found for the types of gradient and output."""

    def update(
        self,
        weights: torch.Tensor,
        grad: torch.Tensor,
        moments: Moments,
        out: torch.Tensor | None,
        *,
        applied_steps: int,
        lr: float,
        weight_decay: float,
        grad_factor: float,
    ) -> None:
        """One step in place: weights [n] and moments [n] in fp32 or fp64; `grad` [n] times `grad_factor` is used.

        The gradient has the weights' type or a 16-bit one; what it holds afterwards is undefined. `out` [n], if given,
        takes the new weights in its own type. All are on the CPU. `applied_steps` as in `adamw_update`.
        """
        numbers = {"lr": lr, "weight_decay": weight_decay, "grad_factor": grad_factor}
        done = 0
        if weights.dtype == torch.float32 and grad_factor != 0.0 and self._is_exact(grad, out):
            assert self._kernel is not None
            done = len(weights) // BLOCK * BLOCK
            work = self._kernel(weights, grad, moments, out, self._hyper, applied_steps=applied_steps, **numbers)
            self._share(work, done)
        if done < len(weights):
            rest = slice(done, None)
            adamw_update(
                weights[rest],
                at_least_fp32(grad[rest]),
                Moments(moments.m[rest], moments.v[rest]),
                self._hyper,
                applied_steps=applied_steps,
                **numbers,
            )
            if out is not None:
                out[rest].copy_(weights[rest])

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _share(self, work: Callable[[int, int], None], length: int) -> None:
        """Let each thread take the next tile of [0, length) until none is left."""
        waiting = iter(range(0, length, _TILE))

        def take() -> None:
            for start in waiting:
                work(start, min(start + _TILE, length))

        for taken in [self._pool.submit(take) for _ in range(self._threads)]:
            taken.result()

    def _is_exact(self, grad: torch.Tensor, out: torch.Tensor | None) -> bool:
        """Whether the kernel gives the bits of `adamw_update` here, by trial at the first use of these types."""
        if self._kernel is None:
            return False
        kinds = grad.dtype, None if out is None else out.dtype
        if kinds not in self._exact:
            self._exact[kinds] = _gives_torchs_bits(self._kernel, self._hyper, *kinds)
        return self._exact[kinds]


def _gives_torchs_bits(
    kernel: OnePass, hyper: AdamHyper, grad_dtype: torch.dtype, out_dtype: torch.dtype | None
) -> bool:
    """Two steps of both from equal states. torch rounds as its build and the processor make it: this is not known."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(_PROBE, generator=generator)
    states = [(weights.clone(), Moments(torch.zeros(_PROBE), torch.zeros(_PROBE))) for _ in range(2)]
    (ours, our_moments), (theirs, their_moments) = states
    out = None if out_dtype is None else torch.zeros(_PROBE, dtype=out_dtype)
    numbers = {"lr": 1e-3, "weight_decay": 0.1, "grad_factor": 0.3}
    for applied_steps in range(2):
        grad = torch.randn(_PROBE, generator=generator).to(grad_dtype)
        kernel(ours, grad, our_moments, out, hyper, applied_steps=applied_steps, **numbers)(0, _PROBE)
        adamw_update(theirs, at_least_fp32(grad), their_moments, hyper, applied_steps=applied_steps, **numbers)
    pairs = [(ours, theirs), (our_moments.m, their_moments.m), (our_moments.v, their_moments.v)]
    if out is not None:
        pairs.append((out, theirs.to(out.dtype)))
    return all(torch.equal(one, other) for one, other in pairs)
