# SPDX-License-Identifier: Apache-2.0
"""Model FLOPs of training: what the mathematics needs, whatever the run recomputes, pads or skips.

Only matrix products count, two FLOPs a multiply-add; backward costs twice forward. Attention counts the full s x s
square, as Megatron-LM does (Narayanan et al., SC21, arXiv:2104.04473, section 5.1 and appendix; with its recomputation
left out, 72 B s L h^2 (1 + s/6h + v/12Lh)). The utilisation made from it is MFU as in PaLM, arXiv:2204.02311,
appendix B. Letters: h hidden, a heads, g key/value heads, d head dim, f MLP width, s sequence, v true vocabulary,
L layers. Vocabulary padding is not counted, so the figure does not depend on the layout.
"""

from dataclasses import dataclass

from megatron_core.config.model import ModelConfig

FORWARD_AND_BACKWARD = 3
"""Backward takes two products (input and weight gradient) for forward's one."""


@dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of one token's forward, by part."""

    projections: int
    """Query, key, value and output projection of one layer: 2h(ad + 2gd) + 2adh."""
    attention: int
    """Scores and weighted values of one layer: 2 * 2sad."""
    mlp: int
    """MLP of one layer: 2 * 2hf, or 3 * 2hf when gated."""
    head: int
    """Logits: 2hv."""

    @property
    def layer(self) -> int:
        """One transformer layer."""
        return self.projections + self.attention + self.mlp


def forward_flops(model: ModelConfig) -> ForwardFlops:
    """FLOPs of one token's forward pass. Needs the vocabulary's size."""
    h, a, g, d, f = model.hidden_size, model.num_attention_heads, model.query_groups, model.head_dim, model.ffn_size
    return ForwardFlops(
        projections=2 * h * (a * d + 2 * g * d) + 2 * a * d * h,
        attention=2 * 2 * model.seq_length * a * d,
        mlp=(3 if model.swiglu else 2) * 2 * h * f,
        head=2 * h * model.vocabulary,
    )


def flops_per_token(model: ModelConfig) -> int:
    """FLOPs of one token's forward and backward: 3 (L * layer + head)."""
    one = forward_flops(model)
    return FORWARD_AND_BACKWARD * (model.num_layers * one.layer + one.head)


def flops_per_step(model: ModelConfig, batch_size: int) -> int:
    """FLOPs of a step over `batch_size` sequences, all devices together."""
    return flops_per_token(model) * model.seq_length * batch_size
