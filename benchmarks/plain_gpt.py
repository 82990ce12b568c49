# SPDX-License-Identifier: Apache-2.0
"""A GPT in plain torch, as nanoGPT writes it: what the other implementations of a benchmark train."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from megatron_core.training.build import Run


class PlainBlock(nn.Module):
    """A layer as nanoGPT writes it."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.c_attn, self.c_proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.c_fc, self.mlp_proj = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [b, s, h] to the same shape."""
        b, s, h = x.shape
        parts = self.c_attn(self.ln_1(x)).split(h, 2)
        q, k, v = (part.view(b, s, self.heads, h // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, s, h))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """The whole model; its head is the token embedding."""

    def __init__(self, ours: Run) -> None:
        """With the shape and the weights of `ours`."""
        super().__init__()
        model = ours.config.model
        self.wte = nn.Embedding(model.vocabulary, model.hidden_size)
        self.wpe = nn.Embedding(model.seq_length, model.hidden_size)
        self.blocks = nn.ModuleList(
            PlainBlock(model.hidden_size, model.num_attention_heads) for _ in range(model.num_layers)
        )
        self.ln_f = nn.LayerNorm(model.hidden_size)
        with torch.no_grad():
            self._take({p.spec.name: p.detach() for p in ours.reducer.parameters})

    def _take(self, weights: dict[str, torch.Tensor]) -> None:
        self.wte.weight.copy_(weights["embedding.tokens.weight"])
        self.wpe.weight.copy_(weights["embedding.positions.weight"])
        for number, block in enumerate(self.blocks):
            for end in ("weight", "bias"):  # biases are 0 and norms 1 at the start: in both models
                q, kv = (weights[f"layers.{number}.attention.{name}.{end}"] for name in ("q", "kv"))
                parts = (q, kv[:, 0], kv[:, 1])
                target = getattr(block.c_attn, end)
                target.copy_(torch.cat([part.reshape(-1, *target.shape[1:]) for part in parts]))
            for name, linear in (
                ("attention.output", block.c_proj),
                ("mlp.up", block.c_fc),
                ("mlp.down", block.mlp_proj),
            ):
                linear.weight.copy_(weights[f"layers.{number}.{name}.weight"].reshape(linear.weight.shape))
                linear.bias.zero_()

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of tokens and labels [b, s]."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight).float()  # the loss in fp32, as under autocast
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))

    def groups(self) -> list[dict[str, Any]]:
        """nanoGPT's: matrices decay, vectors do not."""
        return [
            {"params": [p for p in self.parameters() if p.dim() >= 2], "weight_decay": 0.01},
            {"params": [p for p in self.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
