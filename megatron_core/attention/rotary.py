# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (Su et al. 2021) with base, percent, both layouts, linear interpolation and Llama 3's
rescaling. The table is made once a microbatch and shared by all layers."""

import math
from dataclasses import dataclass

import torch

from megatron_core.config.model import ModelConfig
from megatron_core.kernels.precision import wide_dtype

# Llama 3.1's published constants: wavelengths up to 8192/4 stay, beyond 8192/1 are divided, a ramp lies between.
ORIGINAL_CONTEXT, LOW_FREQUENCY, HIGH_FREQUENCY = 8192, 1.0, 4.0


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin [s, b or 1, 1, r/2] for the r rotated dims of a head."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool


def rotary_dim(config: ModelConfig) -> int:
    """Number r of dims of a head that are rotated."""
    return int(config.head_dim * config.rotary_percent)


def inverse_frequencies(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Angle per position of each rotated pair: [r/2], in `dtype` (at least fp32)."""
    dim = rotary_dim(config)
    exponents = torch.arange(0, dim, 2, dtype=dtype, device=device) / dim
    frequencies = 1.0 / config.rotary_base**exponents
    if config.use_rope_scaling:
        wavelengths = 2 * math.pi / frequencies
        ramp = (ORIGINAL_CONTEXT / wavelengths - LOW_FREQUENCY) / (HIGH_FREQUENCY - LOW_FREQUENCY)
        kept = ramp.clamp(0, 1)
        frequencies = kept * frequencies + (1 - kept) * frequencies / config.rope_scaling_factor
    return frequencies


def rotary_table(config: ModelConfig, position_ids: torch.Tensor, dtype: torch.dtype) -> RotaryTable:
    """The table for position_ids [b, s] (or [1, s] when all samples share them), rounded to the activations' dtype."""
    wide = wide_dtype(dtype)
    positions = position_ids.t().to(wide)  # [s, b]
    if config.rotary_seq_len_interpolation_factor is not None:
        positions = positions / config.rotary_seq_len_interpolation_factor
    angles = positions[:, :, None, None] * inverse_frequencies(config, wide, position_ids.device)
    return RotaryTable(angles.cos().to(dtype), angles.sin().to(dtype), config.rotary_interleaved)


def apply_rotary(x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Rotate the first r dims of x [s, b, heads, d] by its positions' angles; the others pass through."""
    half = table.cos.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    if table.interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., :half], rotated[..., half:]
    turned = (first * table.cos - second * table.sin, second * table.cos + first * table.sin)
    out = torch.stack(turned, -1).flatten(-2) if table.interleaved else torch.cat(turned, -1)
    return torch.cat([out, rest], -1) if rest.shape[-1] else out
