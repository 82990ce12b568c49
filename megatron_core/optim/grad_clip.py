# SPDX-License-Identifier: Apache-2.0
"""The global gradient norm and the factor that clipping makes of it.

Squares are taken and added in at least fp32, so that 16-bit gradients neither overflow nor vanish. Each rank adds up
the elements that it counts; one collective of the training step sums over ranks.
"""

from collections.abc import Sequence

import torch

from megatron_core.kernels.precision import wide_dtype

_ROW = 2**16
"""Elements in one fp32 sum. A CPU adds them up one after the other, so that the norm of 40 million at once, which is a
bucket, comes out 0.3 % short (measured); of rows it is exact to 4e-7, in the same time."""


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> float:
    """Sum of the squares of all elements, wherever they lie: in at least fp32 within a row and in fp64 over rows."""
    norms = [norm for tensor in tensors for norm in _norms_of_rows(tensor)]
    devices = {norm.device for norm in norms}
    return sum(
        (float(torch.cat([n for n in norms if n.device == device]).double().square().sum()) for device in devices), 0.0
    )


def _norms_of_rows(tensor: torch.Tensor) -> list[torch.Tensor]:
    flat = tensor.reshape(-1)
    whole = len(flat) // _ROW * _ROW
    rows = [flat[:whole].view(-1, _ROW), flat[whole:].view(1, -1)]
    dtype = wide_dtype(flat.dtype)
    return [torch.linalg.vector_norm(part, dim=1, dtype=dtype) for part in rows if part.numel()]


def clip_factor(norm: float, limit: float) -> float:
    """What to multiply the gradient by so that its norm is at most `limit`; 1 when limit is 0 (clipping off).

    Megatron-LM's and torch's rule: limit / (norm + 1e-6), at most 1.
    """
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
