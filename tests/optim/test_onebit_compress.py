# SPDX-License-Identifier: Apache-2.0
"""Bits and scales alone: packing, rows, sums, and what one scale loses."""

import pytest
import torch

from megatron_core.optim.onebit_compress import (
    Rows,
    absolute_sums,
    decompress,
    live_counts,
    pack_signs,
    unpack_signs,
)
from tests.small_model import randn


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 1003])
def test_signs_survive_packing_and_zero_counts_as_positive(n: int) -> None:
    values = randn(n)
    values[0] = 0.0
    width = -(-n // 8) * 8 + 8
    bits = pack_signs([values, -values], width)
    assert bits.dtype == torch.uint8 and bits.shape == (2, width // 8)
    for signs, part in zip(unpack_signs(bits), (values, -values)):
        assert torch.equal(signs[:n], torch.where(part >= 0, 1, -1).to(torch.int8))
        assert signs[n:].eq(1).all()


def test_bit_i_of_a_byte_is_element_i() -> None:
    for i in range(8):
        values = -torch.ones(8)
        values[i] = 1.0
        assert pack_signs([values], 8).tolist() == [[1 << i]]
    assert pack_signs([torch.ones(8), -torch.ones(3)], 16).tolist() == [[255, 255], [0b11111000, 255]]


def test_each_row_has_the_mean_of_its_live_elements_for_a_scale() -> None:
    values = torch.tensor([1.0, -3.0, 0.0, 0.0, 5.0])
    dead = torch.tensor([False, False, False, True, False])
    rows = [Rows(0, 4, 2, scale=1), Rows(4, 5, 1, scale=3)]
    assert [run.count for run in rows] == [2, 1]
    sums, counts = torch.zeros(4), torch.zeros(4)
    absolute_sums(values, rows, out=sums)
    live_counts(dead, rows, out=counts)
    assert sums.tolist() == [0.0, 4.0, 0.0, 5.0] and counts.tolist() == [0.0, 2.0, 1.0, 1.0]
    scales = torch.tensor([9.0, 2.0, 3.0, 5.0])
    signs = torch.tensor([1, -1, 1, -1, 1, -1], dtype=torch.int8)  # the last bits of a byte may belong to nothing
    assert decompress(signs, scales, rows, out=torch.empty(5)).tolist() == [2, -2, 3, -3, 5]


def test_the_mean_scale_loses_less_than_the_l2_scale_and_never_more_than_all() -> None:
    values = randn(4096) * (randn(4096, seed=1) > 2.0)  # sparse, as a table of rarely seen tokens
    rows = [Rows(0, 4096, 4096)]
    (signs,) = unpack_signs(pack_signs([values], 4096))
    sums = values.new_zeros(1)
    absolute_sums(values, rows, out=sums)
    l2 = values.norm().view(1) / 64
    lost = {
        name: (values - decompress(signs, scale, rows, out=torch.empty_like(values))).square().sum()
        for name, scale in [("mean", sums / 4096), ("l2", l2)]
    }
    whole = values.square().sum()
    assert lost["mean"] < whole < lost["l2"]
    ratio = values.abs().sum() / (64 * values.norm())
    assert lost["mean"].item() == pytest.approx((whole * (1 - ratio**2)).item(), rel=1e-12)
