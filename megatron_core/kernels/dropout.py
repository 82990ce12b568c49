# SPDX-License-Identifier: Apache-2.0
"""Dropout whose masks are a function of (seed, step, sample number, layer, place), never of layout or call order.

The mask of a whole sample (or of one head) is drawn and each rank takes its slice, so that tensor, sequence, pipeline
and data parallelism as well as recomputation all drop the same elements. With one key per stream no generator state
exists that could run ahead on one rank.
"""

from dataclasses import dataclass

import torch

from megatron_core.parallel.rng import Key, keyed_generator


@dataclass(frozen=True)
class DropoutKey:
    """Names the streams of one microbatch. A forward without a key (evaluation) drops nothing."""

    seed: int
    step: int
    sample_numbers: tuple[int, ...]
    """Global number of each of the b samples."""


def _keep(
    key: DropoutKey, rate: float, number: int, shape: tuple[int, ...], like: torch.Tensor, *place: Key
) -> torch.Tensor:
    generator = keyed_generator(key.seed, "dropout", key.step, number, *place, device=like.device)
    return torch.rand(shape, generator=generator, device=like.device) >= rate


def hidden_dropout(
    x: torch.Tensor, rate: float, key: DropoutKey | None, layer: int, place: str, positions: range, seq_length: int
) -> torch.Tensor:
    """Drop elements of x [s_local, b, h], which holds these `positions` of a sequence of `seq_length`."""
    if key is None or rate == 0.0:
        return x
    shape = (seq_length, x.shape[-1])
    own = slice(positions.start, positions.stop)  # taken before the stack, which backward keeps
    masks = torch.stack([_keep(key, rate, number, shape, x, layer, place)[own] for number in key.sample_numbers], dim=1)
    # The scale is a Python number: as a 16-bit tensor, 1/0.9 would be off by 0.2 %, the same way in every layer.
    return x * masks * (1 / (1 - rate))


def attention_keep_mask(key: DropoutKey, rate: float, layer: int, heads: range, like: torch.Tensor) -> torch.Tensor:
    """Which probabilities of global head numbers `heads` stay: [b, a, s, s]; like [b, a, s, d] gives s and device."""
    s = like.shape[2]
    masks = [
        _keep(key, rate, number, (s, s), like, layer, "attention", head)
        for number in key.sample_numbers
        for head in heads
    ]
    return torch.stack(masks).view(len(key.sample_numbers), len(heads), s, s)
