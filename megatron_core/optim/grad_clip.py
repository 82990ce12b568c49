# SPDX-License-Identifier: Apache-2.0
"""The global gradient norm and the factor that clipping makes of it.

Squares are taken and added in at least fp32, so that 16-bit gradients neither overflow nor vanish. Each rank adds up
the elements that it counts; one collective of the training step sums over ranks.
"""

from collections.abc import Sequence

import torch

from megatron_core.kernels.precision import wide_dtype


def sum_of_squares(tensors: Sequence[torch.Tensor]) -> float:
    """Sum of the squares of all elements, in at least fp32 within a tensor and in fp64 over tensors."""
    if not tensors:
        return 0.0
    norms = [torch.linalg.vector_norm(tensor, dtype=wide_dtype(tensor.dtype)) for tensor in tensors]
    return float(torch.stack(norms).double().square().sum())


def clip_factor(norm: float, limit: float) -> float:
    """What to multiply the gradient by so that its norm is at most `limit`; 1 when limit is 0 (clipping off).

    Megatron-LM's and torch's rule: limit / (norm + 1e-6), at most 1.
    """
    return min(1.0, limit / (norm + 1e-6)) if limit > 0 else 1.0
