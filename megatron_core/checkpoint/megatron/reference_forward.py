# SPDX-License-Identifier: Apache-2.0
"""Megatron's GPT over its own matrices, in plain torch: what a converted model is compared with where Megatron is not.

It shares nothing with our model but the configuration, takes query, key and value out of the fused matrix as Megatron's
attention does, and holds one matrix at a time. In fp64, so that what is not the same function cannot pass for rounding.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from megatron_core.checkpoint.megatron.opened import OpenedMegatron
from megatron_core.checkpoint.megatron.parameters import EMBEDDING, HEAD, parameters
from megatron_core.checkpoint.megatron.sharded import ShardedTensor
from megatron_core.checkpoint.rectangle import whole
from megatron_core.config.model import ModelConfig


def reference_logits(
    opened: OpenedMegatron, config: ModelConfig, tokens: torch.Tensor, rounded: torch.dtype | None = None
) -> torch.Tensor:
    """fp64 logits [b, s, v] of tokens [b, s], without those of padding.

    rounded: a dtype that weights are cast to before. Raises CheckpointError where they are not those of `config`.
    """
    read = _Reader(opened.assemble(parameters(config, opened.padded_vocab_size)), rounded)
    with torch.inference_mode():
        x = read(EMBEDDING)[tokens]
        if config.position_embedding_type == "learned_absolute":
            x = x + read("embedding.position_embeddings.weight")[: tokens.shape[1]]
        for layer in range(config.num_layers):
            name = f"decoder.layers.{layer}"
            normed = _norm(read, config, f"{name}.input_layernorm", x)
            x = x + _attention(read, config, f"{name}.self_attention", normed)
            normed = _norm(read, config, f"{name}.pre_mlp_layernorm", x)
            x = x + _mlp(read, config, f"{name}.mlp", normed)
        x = _norm(read, config, "decoder.final_layernorm", x)
        head = HEAD if config.untie_embeddings_and_output_weights else EMBEDDING
        return F.linear(x, read(head))[..., : config.vocabulary]


@dataclass(frozen=True)
class _Reader:
    """Gives a parameter by name."""

    tensors: Mapping[str, ShardedTensor]
    rounded: torch.dtype | None

    def __call__(self, name: str) -> torch.Tensor:
        tensor = self.tensors[name]
        values = torch.empty(tensor.shape, dtype=tensor.dtype)
        tensor.fill(values, whole(tensor.shape))
        return (values if self.rounded is None else values.to(self.rounded)).to(torch.float64)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


def _linear(read: _Reader, name: str, x: torch.Tensor) -> torch.Tensor:
    bias = read(f"{name}.bias") if f"{name}.bias" in read else None
    return F.linear(x, read(f"{name}.weight"), bias)


def _norm(read: _Reader, config: ModelConfig, name: str, x: torch.Tensor) -> torch.Tensor:
    weight = read(f"{name}.weight")
    if config.normalization == "RMSNorm":
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.norm_epsilon) * weight
    return F.layer_norm(x, weight.shape, weight, read(f"{name}.bias"), config.norm_epsilon)


def _attention(read: _Reader, config: ModelConfig, name: str, x: torch.Tensor) -> torch.Tensor:
    b, s, _ = x.shape
    g, d = config.query_groups, config.head_dim
    r = config.num_attention_heads // g
    mixed = _linear(read, f"{name}.linear_qkv", x).view(b, s, g, r + 2, d)
    query, key, value = mixed[..., :r, :], mixed[..., r : r + 1, :], mixed[..., r + 1 :, :]  # [b, s, g, r or 1, d]
    if config.qk_layernorm:
        query, key = (_norm(read, config, f"{name}.{w}_layernorm", t) for w, t in (("q", query), ("k", key)))
    if config.position_embedding_type == "rope":
        query, key = _rotated(query, config), _rotated(key, config)
    scores = torch.einsum("bsgrd,btgd->bgrst", query, key[..., 0, :]) / math.sqrt(d)
    scores = scores.masked_fill(torch.ones(s, s, dtype=torch.bool).triu(1), -math.inf)
    context = torch.einsum("bgrst,btgd->bsgrd", scores.softmax(-1), value[..., 0, :])
    return _linear(read, f"{name}.linear_proj", context.reshape(b, s, -1))


def _rotated(x: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """x · cos + rotate_half(x) · sin over the first dims of x [b, s, g, r, d]."""
    dim = int(x.shape[-1] * config.rotary_percent)
    frequencies = config.rotary_base ** (-torch.arange(0, dim, 2, dtype=x.dtype) / dim)
    if config.use_rope_scaling:
        # Llama 3: wavelengths beyond 8192 positions grow by the factor, below a quarter of that they stay.
        share = ((8192 * frequencies / (2 * math.pi) - 1) / 3).clamp(0, 1)
        frequencies = frequencies * (share + (1 - share) / config.rope_scaling_factor)
    positions = torch.arange(x.shape[1], dtype=x.dtype) / (config.rotary_seq_len_interpolation_factor or 1)
    angles = torch.outer(positions, frequencies)[:, None, None, :]  # [s, 1, 1, dim/2]
    turned, rest = x[..., :dim], x[..., dim:]
    if config.rotary_interleaved:
        angles = angles.repeat_interleave(2, -1)
        half = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        angles = torch.cat((angles, angles), -1)
        half = torch.cat((-turned[..., dim // 2 :], turned[..., : dim // 2]), -1)
    return torch.cat((turned * angles.cos() + half * angles.sin(), rest), -1)


def _mlp(read: _Reader, config: ModelConfig, name: str, x: torch.Tensor) -> torch.Tensor:
    up = _linear(read, f"{name}.linear_fc1", x)
    if config.swiglu:
        gate, value = up.chunk(2, -1)
        up = F.silu(gate) * value
    elif config.squared_relu:
        up = F.relu(up).square()
    else:
        up = F.gelu(up, approximate="tanh" if config.gelu_form == "tanh" else "none")
    return _linear(read, f"{name}.linear_fc2", up)
