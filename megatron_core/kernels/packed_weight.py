# SPDX-License-Identifier: Apache-2.0
"""A weight in the blocks that oneDNN multiplies from, made once instead of at every product.

Few rows times a large matrix, as when one token a prompt is generated, is mostly reading that matrix; a CPU's GEMM
first copies it into blocks of its own. Measured on one core of an EPYC, 8 rows through 35 M fp32 weights: 22 ms, from
blocks 11 ms; 512 rows take equally long. Products are torch's own for its compiler and not public, so that a torch
without them keeps its weights as they are.
"""

from dataclasses import dataclass

import torch

from megatron_core.kernels.matmul import widened

_ROWS = 32  # blocks for so many rows were the best, or nearly, for any number from 1 to 128


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [m, k] in blocks; 16-bit ones in fp32 where products are taken in that."""

    blocks: torch.Tensor

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., k] times the matrix transposed, plus bias [m]: [..., m], in x's dtype. No gradients."""
        wide = self.blocks.dtype
        bias = None if bias is None else bias.to(wide)
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x.to(wide), self.blocks, bias, "none", [], "")
        return y.to(x.dtype)


def pack(weight: torch.Tensor) -> PackedWeight | None:
    """A weight [m, k] in blocks; None where nothing would be gained or this torch has no such products."""
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))
    if weight.device.type != "cpu" or not known:
        return None
    weight = weight.detach()
    matrix = weight.float() if widened(weight) else weight
    if matrix.dtype != torch.float32:
        return None
    return PackedWeight(torch.ops.mkldnn._reorder_linear_weight(matrix.contiguous(), _ROWS))
