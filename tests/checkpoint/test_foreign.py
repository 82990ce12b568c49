# SPDX-License-Identifier: Apache-2.0
import torch

from megatron_core.checkpoint.foreign import ForeignModel, ForeignTensor


def test_bytes():
    wide = ForeignTensor(name="w", shape=(2, 3), dtype=torch.float32, read=lambda: torch.zeros(2, 3))
    narrow = ForeignTensor(name="n", shape=(5,), dtype=torch.bfloat16, read=lambda: torch.zeros(5).bfloat16())
    assert (wide.nbytes, narrow.nbytes) == (24, 10)
    assert ForeignModel(config={}, tensors=[wide, narrow], origin="here").nbytes == 34
