# SPDX-License-Identifier: Apache-2.0
"""Only 16-bit types are widened."""

import pytest
import torch

from megatron_core.kernels.precision import at_least_fp32, wide_dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_types_become_fp32(dtype: torch.dtype) -> None:
    assert wide_dtype(dtype) == torch.float32
    assert at_least_fp32(torch.zeros(2, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_tensors_are_not_copied(dtype: torch.dtype) -> None:
    x = torch.zeros(2, dtype=dtype)
    assert at_least_fp32(x) is x
