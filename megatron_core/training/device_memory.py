# SPDX-License-Identifier: Apache-2.0
"""Most memory that this rank has held: of the allocator on CUDA, of the whole process on the CPU."""

import resource
import sys

import torch


def peak_memory_bytes(device: torch.device) -> int:
    """Peak since the process started, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
