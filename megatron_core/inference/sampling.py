# SPDX-License-Identifier: Apache-2.0
"""The next token from logits: greedy, or drawn after temperature, top-k, top-p (Holtzman et al. 2020) and a penalty on
repetition (Keskar et al. 2019), in transformers' order and meaning.

A draw is keyed by (seed, number of the row in the whole request, position): neither the layout nor which rows happen to
share a batch shows in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megatron_core.errors import ConfigError
from megatron_core.parallel.rng import keyed_seed

_SEED_BITS = 63


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Raises ConfigError for numbers that mean nothing."""

    temperature: float = 1.0
    """Divides the logits; 0: the likeliest token, of equals the first."""
    top_k: int | None = None
    """Only the k likeliest tokens; None: all."""
    top_p: float | None = None
    """Only the likeliest tokens that together have this probability, at least one; None: all."""
    repetition_penalty: float = 1.0
    """Of tokens that were there before, in the prompt or after it: divides positive logits and multiplies others."""
    seed: int = 1234
    """Of the draws."""

    def __post_init__(self) -> None:
        wrong = [
            ("temperature", self.temperature, "at least 0", self.temperature >= 0),
            ("top-k", self.top_k, "at least 1", self.top_k is None or self.top_k >= 1),
            ("top-p", self.top_p, "above 0 and at most 1", self.top_p is None or 0 < self.top_p <= 1),
            ("repetition-penalty", self.repetition_penalty, "above 0", self.repetition_penalty > 0),
        ]
        for name, value, must, right in wrong:
            if not right:
                raise ConfigError(f"--{name} is {value}; it must be {must}")


def draw(logits: torch.Tensor, sampling: Sampling, rows: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Tokens [b] from logits [b, v], for row numbers of the whole request and the positions that the tokens will have.

    Penalties have been applied before, see `penalized`.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    scores = logits / sampling.temperature
    ids: torch.Tensor | None = None
    if sampling.top_k is not None or sampling.top_p is not None:
        k = min(sampling.top_k or scores.shape[-1], scores.shape[-1])
        scores, ids = scores.topk(k)  # in falling order
    probabilities = scores.softmax(-1)
    sums = probabilities.cumsum(-1, dtype=torch.float64)
    if sampling.top_p is not None:
        kept = sums - probabilities < sampling.top_p
        sums = torch.where(kept, probabilities, 0.0).cumsum(-1, dtype=torch.float64)
    uniforms = [keyed_seed(sampling.seed, "draw", row, at) / 2**_SEED_BITS for row, at in zip(rows, positions)]
    targets = torch.tensor(uniforms, dtype=torch.float64, device=logits.device).unsqueeze(1) * sums[:, -1:]
    # The first token whose sum is above the target has a probability; at the very end rounding may leave none above.
    index = torch.searchsorted(sums, targets, right=True)
    index = index.minimum((sums < sums[:, -1:]).sum(-1, keepdim=True))
    return (index if ids is None else ids.gather(-1, index)).squeeze(-1)


def penalized(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """Logits [b, v] with those of tokens in `seen` [b, v] bool made less likely."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
