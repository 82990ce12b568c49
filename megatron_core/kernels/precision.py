# SPDX-License-Identifier: Apache-2.0
"""The one place that speaks of "at least fp32": sums and normalisers widen 16-bit tensors and leave float64 alone."""

import torch


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for 16-bit types, the type itself otherwise."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def at_least_fp32(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in float32, or as it is when it has that precision or more."""
    return tensor.to(wide_dtype(tensor.dtype))
