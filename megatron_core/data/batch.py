# SPDX-License-Identifier: Apache-2.0
"""Samples -> the tensors of one microbatch. Letters: b microbatch size, s sequence length.

What is padding is known by position, never by value: a tokenizer may well use its end-of-document id to pad,
and a model that is never shown that id as a target never learns to stop.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from megatron_core.data.sample import Sample
from megatron_core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class DocumentRules:
    """How the end-of-document id `eod` is treated (flags of the same names). None: the tokenizer has none."""

    eod: int | None
    vocab_size: int
    reset_position_ids: bool = False
    reset_attention_mask: bool = False
    eod_mask_loss: bool = False

    def __post_init__(self) -> None:
        asked = [
            f"--{name.replace('_', '-')}"
            for name in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
            if getattr(self, name)
        ]
        if asked and self.eod is None:
            raise DataError(
                f"{', '.join(asked)}: the tokenizer has no end-of-document token; take another or drop the flag"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """One microbatch, on the CPU."""

    tokens: torch.Tensor  # [b, s] int64
    labels: torch.Tensor  # [b, s] int64, the token after each
    loss_mask: torch.Tensor  # [b, s] bool, True where the label counts
    position_ids: torch.Tensor  # [b, s] int64
    document_ids: torch.Tensor | None  # [b, s] int64, from 0 in each row; None: attention crosses documents
    sample_numbers: torch.Tensor  # [b] int64, -1 for padding


def make_batch(samples: Sequence[Sample], rules: DocumentRules) -> Batch:
    """Stack samples of one length. Raises DataError for an id outside the vocabulary."""
    rows = np.stack([sample.tokens for sample in samples])  # [b, s + 1]
    _check_vocabulary(rows, samples, rules.vocab_size)
    tokens, labels = rows[:, :-1], rows[:, 1:]
    targets = np.array([sample.num_targets for sample in samples])
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    loss_mask = positions < targets[:, None]
    starts = _document_starts(tokens, rules.eod)
    if rules.eod_mask_loss:
        loss_mask = loss_mask & (tokens != rules.eod)
    if rules.reset_position_ids:
        positions = positions - np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
    return Batch(
        tokens=_tensor(tokens),
        labels=_tensor(labels),
        loss_mask=_tensor(loss_mask),
        position_ids=_tensor(positions),
        document_ids=_tensor(np.cumsum(starts, axis=1)) if rules.reset_attention_mask else None,
        sample_numbers=torch.tensor([sample.number for sample in samples], dtype=torch.int64),
    )


def _document_starts(tokens: np.ndarray, eod: int | None) -> np.ndarray:
    """[b, s] bool: the token before is an end of document, which itself belongs to the earlier document."""
    starts = np.zeros(tokens.shape, dtype=bool)
    if eod is not None:
        starts[:, 1:] = tokens[:, :-1] == eod
    return starts


def _check_vocabulary(rows: np.ndarray, samples: Sequence[Sample], vocab_size: int) -> None:
    if rows.min() >= 0 and rows.max() < vocab_size:
        return
    row = int(np.argmax(((rows < 0) | (rows >= vocab_size)).any(axis=1)))
    worst = int(rows[row].max()) if rows[row].min() >= 0 else int(rows[row].min())
    raise DataError(
        f"sample {samples[row].number} holds token id {worst}, but the vocabulary has {vocab_size} ids; "
        "the data was prepared with another tokenizer than --tokenizer-type names"
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.copy())
