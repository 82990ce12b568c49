# SPDX-License-Identifier: Apache-2.0
"""Continues prompts of any lengths, many at once, with the same tokens at every layout and in any company.

The prompts of a batch go through the model together, then one token a row at a time. Who holds the head draws: tp rank
0 of the last stage, once, and all ranks of the replica are told. A row that has ended waits until half of its batch has
ended; then the batch closes its ranks. Batches are shared out over dp.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.nn.functional as F

from megatron_core.errors import ConfigError
from megatron_core.inference.kv_cache import KVCache
from megatron_core.inference.logits import gather_vocabulary
from megatron_core.inference.model import InferenceModel
from megatron_core.inference.sampling import Sampling, draw, penalized
from megatron_core.kernels.precision import at_least_fp32
from megatron_core.parallel.collectives import all_reduce, broadcast

LOGGER = logging.getLogger("megatron_core")

OnTokens = Callable[[Sequence[int], Sequence[int]], None]
Stop = Literal["end", "length"]


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What to generate."""

    max_new_tokens: int = 128
    """Tokens after each prompt, at most."""
    sampling: Sampling = field(default_factory=Sampling)
    end_ids: frozenset[int] = frozenset()
    """A row ends with the first of these that it gets."""
    batch_size: int = 32
    """Rows that go through the model at once, at most."""

    def __post_init__(self) -> None:
        for name, value in (("max-new-tokens", self.max_new_tokens), ("batch-size", self.batch_size)):
            if value < 1:
                raise ConfigError(f"--{name} is {value}; it must be at least 1")


@dataclass(frozen=True)
class Generated:
    """What follows one prompt."""

    tokens: list[int]
    """The end id, where there is one, is the last of them."""
    log_probabilities: list[float]
    """Of each token, under the model as it is: no temperature, no penalty, nothing cut away."""
    stopped: Stop
    """end: by an end id, or by `until`; length: after max_new_tokens."""


def generate(
    model: InferenceModel,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    *,
    on_tokens: OnTokens | None = None,
    until: Callable[[Sequence[int]], bool] | None = None,
) -> list[Generated]:
    """What follows each prompt, the same on every rank. All ranks must call.

    `on_tokens`: is told after each step the numbers of the prompts that got a token, and these tokens, on the ranks of
    the replica that works on them. `until`: asked after each token, with all those of its row that were generated,
    whether the row ends there; it must say the same on every rank. Raises ConfigError for a prompt without tokens, with
    ids that the model does not have, or too long to be continued.
    """
    _check(model, prompts, settings)
    dp = model.ctx.dp
    order = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    size = min(settings.batch_size, max(1, -(-len(prompts) // dp.size)))  # no replica idle while another has two rows
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    found: dict[int, Generated] = {}
    with torch.inference_mode():
        for numbers in batches[dp.coordinate :: dp.size]:
            batch = _Batch(model, {number: list(prompts[number]) for number in numbers}, settings)
            found |= batch.run(on_tokens, until)
        return _shared(model, found, len(prompts), settings.max_new_tokens)


def _check(model: InferenceModel, prompts: Sequence[Sequence[int]], settings: GenerationSettings) -> None:
    config, longest = model.config, 0
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ConfigError(f"prompt {number} is empty: there is nothing to continue")
        if wrong := [token for token in prompt if not 0 <= token < config.vocabulary]:
            raise ConfigError(f"prompt {number} has the id {wrong[0]}; the model has 0 to {config.vocabulary - 1}")
        if len(prompt) > longest:
            longest, where = len(prompt), number
    if not prompts:
        return
    needed = longest + settings.max_new_tokens
    if config.position_embedding_type == "learned_absolute" and needed > config.max_position_embeddings:
        raise ConfigError(
            f"prompt {where} has {longest} tokens, {needed} with --max-new-tokens {settings.max_new_tokens}, but the "
            f"model has {config.max_position_embeddings} positions: shorten it, or generate fewer"
        )
    if config.position_embedding_type != "learned_absolute" and needed > config.seq_length and model.ctx.rank == 0:
        LOGGER.warning(
            "up to %d tokens, but the model was trained on %d at a time: what lies beyond may be poor",
            needed,
            config.seq_length,
        )


@dataclass
class _Row:
    """One prompt under way."""

    number: int
    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    stopped: Stop | None = None

    @property
    def position(self) -> int:
        """Where the next token will stand."""
        return len(self.prompt) + len(self.tokens)


class _Batch:
    """Prompts that go through the model together."""

    def __init__(self, model: InferenceModel, prompts: dict[int, list[int]], settings: GenerationSettings) -> None:
        self._model, self._settings, self._device = model, settings, model.ctx.device
        self._all = [_Row(number, prompt) for number, prompt in prompts.items()]
        self._rows = list(self._all)  # those in the cache, ended ones among them
        self._longest = max(map(len, prompts.values()))
        # The last token goes through no forward.
        self._cache = KVCache(self._longest + settings.max_new_tokens - 1)
        self._seen: torch.Tensor | None = None

    def run(self, on_tokens: OnTokens | None, until: Callable[[Sequence[int]], bool] | None) -> dict[int, Generated]:
        """By number of the prompt."""
        drawn = self._draw(self._through_prompts())
        while True:
            alive = [(row, token, log_p) for row, token, log_p in zip(self._rows, *drawn) if row.stopped is None]
            for row, token, log_p in alive:
                row.tokens.append(int(token))
                row.log_probabilities.append(log_p)
                if int(token) in self._settings.end_ids or (until is not None and until(row.tokens)):
                    row.stopped = "end"
                elif len(row.tokens) == self._settings.max_new_tokens:
                    row.stopped = "length"
            if on_tokens is not None:
                on_tokens([row.number for row, _, _ in alive], [int(token) for _, token, _ in alive])
            going = [index for index, row in enumerate(self._rows) if row.stopped is None]
            if not going:
                break
            if 2 * len(going) <= len(self._rows):
                self._close_ranks(going)
            drawn = self._draw(self._through_next())
        return {row.number: Generated(row.tokens, row.log_probabilities, row.stopped or "length") for row in self._all}

    def _through_prompts(self) -> torch.Tensor | None:
        """What stands before the final norm at each prompt's last token, [b, h]; None but on the last stage."""
        tokens = torch.tensor([[*row.prompt, *[0] * (self._longest - len(row.prompt))] for row in self._rows])
        positions = torch.arange(self._longest, device=self._device).unsqueeze(0)
        x = self._model.residual_stream(tokens.to(self._device), positions, self._cache.prompts())
        last = torch.tensor([len(row.prompt) - 1 for row in self._rows], device=self._device)
        return None if x is None else x[last, torch.arange(len(last), device=self._device)]

    def _through_next(self) -> torch.Tensor | None:
        """The same of the token that each row got last. Of ended rows it means nothing, and nobody looks."""
        tokens = torch.tensor([row.tokens[-1] for row in self._rows], device=self._device)
        places = [row.position - 1 for row in self._rows]
        positions = torch.tensor(places, device=self._device)
        earlier = self._cache.next_tokens(positions, max(places) + 1)
        x = self._model.residual_stream(tokens.unsqueeze(1), positions.unsqueeze(1), earlier)
        return None if x is None else x[0]

    def _draw(self, x: torch.Tensor | None) -> list[list[float]]:
        """The next token of each row, and its log-probability, on every rank of the replica."""
        ctx, sampling = self._model.ctx, self._settings.sampling
        drawn = torch.zeros(2, len(self._rows), dtype=torch.float64, device=self._device)  # exact for any id
        if x is not None:
            logits = at_least_fp32(gather_vocabulary(self._model, self._model.local_logits(x)))
            if ctx.tp.coordinate == 0:
                tokens = draw(
                    self._penalized(logits),
                    sampling,
                    [row.number for row in self._rows],
                    [row.position for row in self._rows],
                )
                drawn[0] = tokens
                drawn[1] = -F.cross_entropy(logits, tokens, reduction="none")
            broadcast(drawn, ctx.tp)
        numbers: list[list[float]] = broadcast(drawn, ctx.pp, ctx.pp.size - 1).tolist()
        return numbers

    def _penalized(self, logits: torch.Tensor) -> torch.Tensor:
        penalty = self._settings.sampling.repetition_penalty
        if penalty == 1.0:
            return logits
        if self._seen is None:
            self._seen = torch.zeros(logits.shape, dtype=torch.bool, device=self._device)
            for index, row in enumerate(self._rows):
                self._seen[index, row.prompt] = True
        else:
            last = torch.tensor([row.tokens[-1] for row in self._rows], device=self._device)
            self._seen.scatter_(1, last.unsqueeze(1), True)
        return penalized(logits, self._seen, penalty)

    def _close_ranks(self, going: list[int]) -> None:
        kept = torch.tensor(going, device=self._device)
        self._cache.keep_rows(kept)
        self._seen = None if self._seen is None else self._seen[kept]
        self._rows = [self._rows[index] for index in going]


def _shared(model: InferenceModel, found: dict[int, Generated], count: int, most: int) -> list[Generated]:
    """What all replicas found, in order of the prompts."""
    dp = model.ctx.dp
    if dp.size > 1:
        # Rows: tokens, log-probabilities, then length and whether it ended; zero where another replica generated.
        table = torch.zeros(count, 2 * most + 2, dtype=torch.float64)
        for number, row in found.items():
            n = len(row.tokens)
            table[number, :n] = torch.tensor(row.tokens, dtype=torch.float64)
            table[number, most : most + n] = torch.tensor(row.log_probabilities, dtype=torch.float64)
            table[number, -2:] = torch.tensor([n, row.stopped == "end"], dtype=torch.float64)
        for number, line in enumerate(all_reduce(table.to(model.ctx.device), dp).tolist()):
            n = int(line[-2])
            found[number] = Generated(
                [int(token) for token in line[:n]], line[most : most + n], "end" if line[-1] else "length"
            )
    return [found[number] for number in range(count)]
