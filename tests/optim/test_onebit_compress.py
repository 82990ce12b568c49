# SPDX-License-Identifier: Apache-2.0
"""Bits and scales alone: packing, pieces, sums, and what one scale loses."""

import pytest
import torch

from megatron_core.optim.onebit_compress import (
    Piece,
    absolute_sums,
    decompress,
    live_counts,
    pack_signs,
    pieces_within,
    unpack_signs,
)
from tests.small_model import randn


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 1003])
def test_signs_survive_packing_and_zero_counts_as_positive(n: int) -> None:
    values = randn(n)
    values[0] = 0.0
    size = -(-n // 8) * 8
    bits = pack_signs(values, size)
    assert bits.dtype == torch.uint8 and bits.numel() == size // 8
    signs = unpack_signs(bits)
    assert torch.equal(signs[:n], torch.where(values >= 0, 1, -1).to(torch.int8))
    assert signs[n:].eq(1).all()


def test_bit_i_of_a_byte_is_element_i() -> None:
    for i in range(8):
        values = -torch.ones(8)
        values[i] = 1.0
        assert pack_signs(values, 8).tolist() == [1 << i]
    assert pack_signs(torch.ones(8), 16).tolist() == [255, 255]


def test_pieces_of_a_range_are_counted_from_its_start() -> None:
    pieces = [Piece(0, 10, 3), Piece(10, 12, 4), Piece(12, 30, 5)]
    assert list(pieces_within(pieces, 8, 16)) == [Piece(0, 2, 3), Piece(2, 4, 4), Piece(4, 8, 5)]
    assert list(pieces_within(pieces, 0, 10)) == [Piece(0, 10, 3)]
    assert list(pieces_within(pieces, 32, 40)) == []


def test_scales_are_means_of_absolute_values_over_live_elements() -> None:
    values = torch.tensor([1.0, -3.0, 0.0, 0.0, 5.0])
    dead = torch.tensor([False, False, False, True, False])
    pieces = [Piece(0, 4, 1), Piece(4, 5, 2)]
    sums, counts = absolute_sums(values, pieces, 3), live_counts(dead, pieces, 3, values.dtype)
    assert sums.tolist() == [0.0, 4.0, 5.0] and counts.tolist() == [0.0, 3.0, 1.0]
    scales = torch.tensor([9.0, 2.0, 5.0])
    signs = torch.tensor([1, -1, 1, -1, 1, -1], dtype=torch.int8)  # the last bits of a byte may belong to nothing
    assert decompress(signs, scales, pieces, out=torch.empty(5)).tolist() == [2, -2, 2, -2, 5]
    assert decompress(signs, scales, pieces[1:], out=torch.full((5,), 7.0)).tolist() == [7, 7, 7, 7, 5]


def test_the_mean_scale_loses_less_than_the_l2_scale_and_never_more_than_all() -> None:
    values = randn(4096) * (randn(4096, seed=1) > 2.0)  # sparse, as a table of rarely seen tokens
    piece = [Piece(0, 4096, 0)]
    signs = unpack_signs(pack_signs(values, 4096))
    mean = absolute_sums(values, piece, 1) / 4096
    l2 = values.norm().view(1) / 64
    lost = {
        name: (values - decompress(signs, scale, piece, out=torch.empty_like(values))).square().sum()
        for name, scale in [("mean", mean), ("l2", l2)]
    }
    whole = values.square().sum()
    assert lost["mean"] < whole < lost["l2"]
    ratio = values.abs().sum() / (64 * values.norm())
    assert lost["mean"].item() == pytest.approx((whole * (1 - ratio**2)).item(), rel=1e-12)
