# SPDX-License-Identifier: Apache-2.0
"""One sign bit an element and one scale a row: the compression of 1-bit Adam, as functions of tensors.

A row is what runs along a tensor's last dims: the weights of one output, one embedding, or all of a bias. Its scale is
the mean of absolute values, which of all single scales loses least (the L2 scale of the first implementations loses
more than it sends where values are sparse). A sign cannot say zero: elements that must stay zero are named `dead`,
count in no mean and are masked by whoever decompresses. Paper: Tang et al., arXiv:2102.02888.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# The product of eight bytes of 0 or 1 (an int64, first byte lowest) with this has them as the bits of its top byte.
_GATHER_BITS = 0x0102040810204080


@dataclass(frozen=True)
class Rows:
    """Elements [start, stop) of a flat tensor: rows of `length` elements, with the scales from number `scale` on."""

    start: int
    stop: int
    length: int
    cut: bool = False
    """Whether other tp ranks hold the rest of each row."""
    scale: int = 0

    @property
    def count(self) -> int:
        """Number of rows."""
        return (self.stop - self.start) // self.length

    @property
    def scales(self) -> slice:
        """Numbers of their scales."""
        return slice(self.scale, self.scale + self.count)


@dataclass(frozen=True)
class Errors:
    """What compression has lost of one bucket of n elements so far and will add next time; one of `size` dp ranks."""

    coordinate: int
    size: int
    worker: torch.Tensor
    """[n]: of this rank's own values."""
    server: torch.Tensor
    """Of the average, in the elements from `start` on, which this rank serves."""
    start: int


def pack_signs(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """Bit i of byte j of row k says whether value 8j + i of part k is at least 0: uint8 [parts, width / 8].

    width: a multiple of 8, at least the size of each flat part, beyond which all bits are 1.
    """
    signs = torch.ones(len(parts), width, dtype=torch.bool, device=parts[0].device)
    for row, part in zip(signs, parts):
        torch.ge(part, 0, out=row[: part.numel()])
    return (signs.view(torch.int64) * _GATHER_BITS >> 56).to(torch.uint8)


def unpack_signs(bits: torch.Tensor) -> torch.Tensor:
    """+1 and -1 from packed bits: uint8 [parts, n] -> int8 [parts, 8n]."""
    byte = torch.arange(256, device=bits.device).unsqueeze(1)
    table = ((byte >> torch.arange(8, device=bits.device) & 1) * 2 - 1).to(torch.int8)
    chosen = table.view(torch.int64).view(-1).index_select(0, bits.view(-1).int())
    return chosen.view(torch.int8).view(bits.shape[0], -1)


def absolute_sums(values: torch.Tensor, rows: Sequence[Rows], out: torch.Tensor) -> None:
    """Write each row's sum of absolute values by scale number: [n] -> `out` [scales]."""
    for run in rows:
        torch.sum(values[run.start : run.stop].view(-1, run.length).abs(), dim=1, out=out[run.scales])


def live_counts(dead: torch.Tensor, rows: Sequence[Rows], out: torch.Tensor) -> None:
    """Write each row's number of elements that are not dead by scale number: bool [n] -> `out` [scales]."""
    for run in rows:
        out[run.scales] = run.length - dead[run.start : run.stop].view(-1, run.length).sum(dim=1)


def decompress(signs: torch.Tensor, scales: torch.Tensor, rows: Sequence[Rows], out: torch.Tensor) -> torch.Tensor:
    """Write each sign times the scale of its row: int8 [≥ n], [scales] -> `out` [n]."""
    for run in rows:
        span, shape = slice(run.start, run.stop), (-1, run.length)
        torch.mul(signs[span].view(shape), scales[run.scales].unsqueeze(1), out=out[span].view(shape))
    return out
