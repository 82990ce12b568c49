# SPDX-License-Identifier: Apache-2.0
"""Which storages are memory of the host and not of the device.

On CUDA a tensor's device says it. Where the device is a CPU, a mark on the storage does, so that what would have left a
GPU can be seen to have left (`training/live_bytes.py`). A storage keeps its mark as long as it lives.
"""

import torch

_MARK = "is_host_memory"


def as_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The storage, which is host memory from now on."""
    storage.__dict__[_MARK] = True
    return storage


def on_host(storage: torch.UntypedStorage) -> bool:
    """Whether a storage of a CPU was marked."""
    return _MARK in storage.__dict__


def host_like(tensor: torch.Tensor) -> torch.Tensor:
    """Host memory for a copy of a flat tensor [n], pinned where a GPU shall read and write it."""
    if tensor.is_cuda:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    # Not by an operator, so that who watches operators meets it with its mark.
    storage = as_host(torch.UntypedStorage(tensor.nbytes, device=tensor.untyped_storage().device))
    return torch.empty(0, dtype=tensor.dtype).set_(storage)
