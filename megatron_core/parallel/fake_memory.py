# SPDX-License-Identifier: Apache-2.0
"""Which tensors have no memory behind them: the fake ones of a dry run (`training/dry_run.py`).

They say that they are on the CPU, since this process may know no other device, and stand for tensors of a GPU: what is
done to spare a CPU is not done to them.
"""

import torch


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape, a type and a size in bytes, but no memory."""
    return tensor.untyped_storage().device.type == "meta"


def only_fakes_are_made() -> bool:
    """Whether tensors that are made now are fake."""
    return is_fake(torch.empty(0))
