# SPDX-License-Identifier: Apache-2.0
"""Keys and values of the tokens so far, so that each new token goes through the model alone.

A slot is a position: row i's token at position p lies in slot p, and a query at position p sees slots 0 .. p. So
prompts of different lengths start at position 0 all of them, padded on the right: what padding leaves in slots behind a
row's end is overwritten by the tokens that come to stand there before any query sees it.

Letters: b rows, g key/value heads of this rank, d head dim.
"""

from dataclasses import dataclass

import torch

from megatron_core.attention.self_attention import EarlierTokens


class KVCache:
    """Of one batch, for the layers of this rank."""

    def __init__(self, slots: int) -> None:
        """`slots`: positions that a row can ever fill; their memory is taken once, when the prompts come."""
        self.slots = slots
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """By global number: keys and values, [b, g, slots, d] each."""

    def prompts(self) -> EarlierTokens:
        """For the forward of the first tokens of each row, at positions 0 .. s - 1."""
        return _Prompts(self)

    def next_tokens(self, positions: torch.Tensor, used: int) -> EarlierTokens:
        """For the forward of one more token a row, at `positions` [b]; `used`: one more than the largest of them."""
        slots = torch.arange(used, device=positions.device)
        mask = slots <= positions.unsqueeze(1)
        rows = torch.arange(len(positions), device=positions.device)
        return _NextTokens(self, rows, positions, used, mask[:, None, None, :])

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Forget all rows but these, which become 0, 1, … in this order."""
        self.layers = {layer: (k[rows], v[rows]) for layer, (k, v) in self.layers.items()}


@dataclass(frozen=True)
class _Prompts:
    cache: KVCache
    mask: None = None

    def joined(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        b, g, s, d = k.shape
        # Zeros, since a slot that nobody has filled yet is masked for shorter rows but takes part in their products.
        shape = (b, g, self.cache.slots, d)
        kept = self.cache.layers[layer] = (k.new_zeros(shape), v.new_zeros(shape))
        s = min(s, self.cache.slots)  # what sequence parallelism pads may be more
        for store, values in zip(kept, (k, v)):
            store[:, :, :s] = values[:, :, :s]
        return k, v


@dataclass(frozen=True)
class _NextTokens:
    cache: KVCache
    rows: torch.Tensor
    positions: torch.Tensor
    used: int
    mask: torch.Tensor

    def joined(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.cache.layers[layer]
        for store, new in ((keys, k), (values, v)):
            store.transpose(1, 2)[self.rows, self.positions] = new[:, :, 0]
        return keys[:, :, : self.used], values[:, :, : self.used]
