# SPDX-License-Identifier: Apache-2.0
"""How likely a model finds given sequences: each token's log-probability after those before it.

Sequences of like length make a batch, padded on the right, where padding changes nothing. Batches are shared out over
dp. Logits stay cut along the vocabulary, and only those of scored tokens are made, block by block.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from megatron_core.inference.model import InferenceModel
from megatron_core.kernels.precision import at_least_fp32
from megatron_core.parallel.collectives import MAX, all_reduce
from megatron_core.tensor_parallel.vocab_cross_entropy import vocab_parallel_cross_entropy

_BLOCK_BYTES = 1 << 26  # of logits that are there at once


@dataclass(frozen=True)
class Scores:
    """The scored tokens of one sequence, in order."""

    log_probabilities: torch.Tensor
    """Natural logarithms, [n] float64 on the CPU."""
    greedy: torch.Tensor
    """Whether each is the likeliest token there, of equals the first: [n] bool."""


def score(
    model: InferenceModel,
    sequences: Sequence[Sequence[int]],
    *,
    first: Sequence[int] | None = None,
    batch_tokens: int = 4096,
) -> list[Scores]:
    """Scores of tokens[first:] of each sequence, the same on every rank. All ranks must call.

    `first`: for each sequence the index of its first scored token, at least 1, the default. `batch_tokens`: tokens that
    go through the model at once, padding included; a longer sequence goes alone. What lies beyond learned positions
    is an error of the caller.
    """
    starts = [1] * len(sequences) if first is None else list(first)
    assert all(start >= 1 for start in starts), "nothing comes before a first token, so that it has no probability"
    counts = [max(len(tokens) - start, 0) for tokens, start in zip(sequences, starts)]
    offsets = list(itertools.accumulate(counts, initial=0))
    ctx = model.ctx
    found = torch.zeros(2, sum(counts), dtype=torch.float64, device=ctx.device)
    batches = list(_batches([len(tokens) for tokens in sequences], counts, batch_tokens))
    with torch.inference_mode():
        for numbers in batches[ctx.dp.coordinate :: ctx.dp.size]:
            result = _score_batch(model, [sequences[n] for n in numbers], [starts[n] for n in numbers])
            if result is None:
                continue
            parts = result.split([counts[n] for n in numbers], dim=1)
            for number, part in zip(numbers, parts):
                found[:, offsets[number] : offsets[number] + counts[number]] = part
        all_reduce(found, ctx.pp)  # zero but on the last stage
        all_reduce(found, ctx.dp)
    rows = found.cpu().clone()
    return [Scores(rows[0, a:b], rows[1, a:b] > 0) for a, b in itertools.pairwise(offsets)]


def _batches(lengths: Sequence[int], counts: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of the sequences of each batch, longest first, so that what does not fit in memory shows at once."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if counts[number] == 0:
            continue
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _score_batch(
    model: InferenceModel, sequences: Sequence[Sequence[int]], starts: Sequence[int]
) -> torch.Tensor | None:
    """Rows log-probability and greedy (0 or 1) of all scored tokens, one sequence after the other: [2, n].

    None but on the last stage.
    """
    device = model.ctx.device
    longest = max(map(len, sequences)) - 1  # of the last token only its own probability is asked
    tokens = torch.tensor([[*row[:-1], *[0] * (longest + 1 - len(row))] for row in sequences], device=device)
    x = model.residual_stream(tokens, torch.arange(longest, device=device).unsqueeze(0))
    if x is None:
        return None
    rows = [number for number, row in enumerate(sequences) for _ in row[starts[number] :]]
    places = [place for row, start in zip(sequences, starts) for place in range(start - 1, len(row) - 1)]
    targets = torch.tensor([token for row, start in zip(sequences, starts) for token in row[start:]], device=device)
    scored = x[torch.tensor(places, device=device), torch.tensor(rows, device=device)]  # [n, h]
    step = max(1, _BLOCK_BYTES // (model.vocab_slice.rows * 8))
    return torch.cat(
        [_score_rows(model, a, b) for a, b in zip(scored.split(step), targets.split(step), strict=True)], dim=1
    )


def _score_rows(model: InferenceModel, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """x [n, h] before the final norm and the tokens that follow, [n]: [2, n] float64."""
    tp, piece = model.ctx.tp, model.vocab_slice
    logits = model.local_logits(x)
    n, held = logits.shape
    best = at_least_fp32(logits).new_full((n,), -torch.inf)
    first_best = torch.zeros(n, dtype=torch.int64, device=x.device)
    if held:
        values, first_best = logits.max(-1)
        best = at_least_fp32(values)
    highest = all_reduce(best.clone(), tp, MAX)
    # Of equals the lowest id counts: the largest of its negatives.
    winner = torch.where(best == highest, -(first_best + piece.start), -model.config.vocabulary)
    greedy = -all_reduce(winner, tp, MAX) == targets
    losses = vocab_parallel_cross_entropy(logits, targets, piece, model.config.vocabulary, tp)
    return torch.stack([-losses.double(), greedy.double()])
