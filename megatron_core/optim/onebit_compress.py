# SPDX-License-Identifier: Apache-2.0
"""One sign bit an element and one scale a parameter: the compression of 1-bit Adam, as functions of tensors.

The scale is the mean of absolute values, which of all single scales loses least (the L2 scale of the first
implementations loses more than it sends where values are sparse). A sign cannot say zero: elements that must stay zero
are named `dead`, count in no mean and are masked by whoever decompresses. Paper: Tang et al., arXiv:2102.02888.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

# The product of eight bytes of 0 or 1 (an int64, first byte lowest) with this has them as the bits of its top byte.
_GATHER_BITS = 0x0102040810204080


@dataclass(frozen=True)
class Piece:
    """Elements [start, stop) of a flat tensor that share scale number `scale`: a parameter, or a part of one."""

    start: int
    stop: int
    scale: int


@dataclass(frozen=True)
class Errors:
    """What compression has lost of one bucket of n elements so far and will add next time; one of `size` dp ranks."""

    coordinate: int
    size: int
    worker: torch.Tensor
    """[n]: of this rank's own values."""
    server: torch.Tensor
    """[width]: of the average, in the elements from `start` on; those beyond n are zero."""

    @property
    def start(self) -> int:
        """First element that this rank serves."""
        return self.coordinate * self.server.numel()


def pieces_within(pieces: Sequence[Piece], start: int, stop: int) -> Iterator[Piece]:
    """What lies in [start, stop) of a flat tensor with these pieces, counted from `start`."""
    for piece in pieces:
        first, last = max(piece.start, start), min(piece.stop, stop)
        if first < last:
            yield Piece(first - start, last - start, piece.scale)


def pack_signs(values: torch.Tensor, size: int) -> torch.Tensor:
    """Bit i of byte j says whether value 8j + i is at least 0: [n] -> uint8 [size / 8], ones beyond n.

    size: a multiple of 8, at least n.
    """
    signs = torch.ones(size, dtype=torch.bool, device=values.device)
    torch.ge(values, 0, out=signs[: values.numel()])
    return (signs.view(torch.int64) * _GATHER_BITS >> 56).to(torch.uint8)


def unpack_signs(bits: torch.Tensor) -> torch.Tensor:
    """+1 and -1 from packed bits: uint8 [n] -> int8 [8n]."""
    byte = torch.arange(256, device=bits.device).unsqueeze(1)
    table = ((byte >> torch.arange(8, device=bits.device) & 1) * 2 - 1).to(torch.int8)
    return table.view(torch.int64).view(-1).index_select(0, bits.int()).view(torch.int8)


def absolute_sums(values: torch.Tensor, pieces: Sequence[Piece], num_scales: int) -> torch.Tensor:
    """Sum of absolute values by scale number, 0 for those without a piece: [n] -> [num_scales]."""
    sums = values.new_zeros(num_scales)
    for piece in pieces:
        sums[piece.scale] = values[piece.start : piece.stop].abs().sum()
    return sums


def live_counts(dead: torch.Tensor, pieces: Sequence[Piece], num_scales: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements that are not dead by scale number: bool [n] -> [num_scales]."""
    counts = torch.zeros(num_scales, dtype=dtype, device=dead.device)
    for piece in pieces:
        counts[piece.scale] = piece.stop - piece.start - dead[piece.start : piece.stop].sum()
    return counts


def decompress(signs: torch.Tensor, scales: torch.Tensor, pieces: Sequence[Piece], out: torch.Tensor) -> torch.Tensor:
    """Write each sign times the scale of its piece: int8 [≥ n], [num_scales] -> `out` [n], unchanged between pieces."""
    for piece in pieces:
        span = slice(piece.start, piece.stop)
        torch.mul(signs[span], scales[piece.scale], out=out[span])
    return out
