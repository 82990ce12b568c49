# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding against short formulas in complex numbers."""

import cmath
import math

import pytest
import torch

from megatron_core.attention.rotary import apply_rotary, inverse_frequencies, rotary_dim, rotary_table
from megatron_core.config.model import ModelConfig
from tests.small_model import randn, small

CPU = torch.device("cpu")


def _config(**changes: object) -> ModelConfig:
    return small(**{"position_embedding_type": "rope", "kv_channels": 16} | changes)


def _turned(head: list[float], position: float, config: ModelConfig) -> list[float]:
    """One head's vector, pair by pair as a complex number times exp(i position base^(-2j/r))."""
    r = rotary_dim(config)
    out = list(head)
    for j in range(r // 2):
        first, second = (2 * j, 2 * j + 1) if config.rotary_interleaved else (j, j + r // 2)
        z = complex(head[first], head[second]) * cmath.exp(1j * position * config.rotary_base ** (-2 * j / r))
        out[first], out[second] = z.real, z.imag
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("percent, rotated", [(1.0, 16), (0.5, 8), (0.25, 4)])
@pytest.mark.parametrize("factor", [None, 4.0])
def test_matches_complex_multiplication(interleaved: bool, percent: float, rotated: int, factor: float | None) -> None:
    config = _config(
        rotary_interleaved=interleaved,
        rotary_percent=percent,
        rotary_base=5000.0,
        rotary_seq_len_interpolation_factor=factor,
    )
    assert rotary_dim(config) == rotated
    positions = torch.tensor([[0, 1, 2, 300], [5, 4, 0, 1]])  # [b, s]
    x = randn(4, 2, 3, 16)  # [s, b, heads, d]
    out = apply_rotary(x, rotary_table(config, positions, torch.float64))
    for s in range(4):
        for b in range(2):
            position = positions[b, s].item() / (factor or 1.0)
            for head in range(3):
                expected = _turned(x[s, b, head].tolist(), position, config)
                assert out[s, b, head].tolist() == pytest.approx(expected, abs=1e-11)
    assert torch.equal(out[..., rotated:], x[..., rotated:])


def test_scores_depend_on_distance_alone() -> None:
    config, q, k = _config(), randn(1, 1, 1, 16, seed=1), randn(1, 1, 1, 16, seed=2)

    def score(position_q: int, position_k: int) -> float:
        turned = [
            apply_rotary(x, rotary_table(config, torch.tensor([[position]]), torch.float64))
            for x, position in ((q, position_q), (k, position_k))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-11)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-6)


def test_llama3_scaling() -> None:
    config = _config(kv_channels=128, rotary_base=500_000.0, use_rope_scaling=True, rope_scaling_factor=8.0)
    scaled = inverse_frequencies(config, torch.float64, CPU)
    for j, got in enumerate(scaled.tolist()):
        frequency = 500_000.0 ** (-2 * j / 128)
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            expected = frequency
        elif wavelength > 8192:
            expected = frequency / 8
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * frequency / 8 + smooth * frequency
        assert got == pytest.approx(expected, rel=1e-12)
    assert 0 < scaled[-1] < 500_000.0 ** (-126 / 128) / 7.9


def test_tables_of_16bit_models_are_computed_in_fp32() -> None:
    positions = torch.tensor([[4001]])
    table = rotary_table(_config(), positions, torch.bfloat16)
    exact = rotary_table(_config(), positions, torch.float64)
    assert table.cos.dtype == torch.bfloat16
    torch.testing.assert_close(table.cos.double(), exact.cos, rtol=0, atol=2**-8)
    torch.testing.assert_close(table.sin.double(), exact.sin, rtol=0, atol=2**-8)
