# SPDX-License-Identifier: Apache-2.0
"""What a data set holds, in lines of text, found out without reading all of it."""

import numpy as np

from megatron_core.data.gpt_dataset import open_stream
from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.split import parse_split, part_range
from megatron_core.data.tokenizer import Tokenizer

_LOOKED_AT = 10_000
_QUANTILES = (0, 10, 50, 90, 99, 100)
_SHOWN_TOKENS = 48


def describe_dataset(
    prefix: str, *, tokenizer: Tokenizer | None, documents: int, seq_length: int, train_samples: int | None, split: str
) -> list[str]:
    """Size, lengths, what a plan would use, and the start of some documents. Raises DataError if it is none."""
    file = IndexedFile(prefix)
    lines = [
        f"{prefix}: {file.num_documents:,} documents, {file.num_sequences:,} sequences, {file.num_tokens:,} tokens, "
        f"stored as {file.dtype.name} ({file.num_tokens * file.dtype.itemsize / 1e6:,.1f} MB)",
        _lengths_line(file),
        *_plan_lines(file, seq_length, train_samples, split),
    ]
    if tokenizer is not None:
        lines.append(_ids_line(file, tokenizer))
    shown = np.linspace(0, file.num_sequences - 1, min(documents, file.num_sequences)).astype(int)
    return lines + [_document_line(file, int(number), tokenizer) for number in shown]


def _lengths_line(file: IndexedFile) -> str:
    step = -(-file.num_sequences // _LOOKED_AT)
    lengths = file.lengths[::step]
    values = np.percentile(lengths, _QUANTILES).astype(int)
    quantiles = ", ".join(f"{q} %: {value:,}" for q, value in zip(_QUANTILES, values))
    every = "" if step == 1 else f" (one in {step:,} looked at)"
    return f"tokens a sequence: mean {file.num_tokens / file.num_sequences:,.1f}; {quantiles}{every}"


def _plan_lines(file: IndexedFile, seq_length: int, train_samples: int | None, split: str) -> list[str]:
    stream = open_stream(file, part_range(parse_split(split), file.num_sequences, "train", file.prefix))
    samples = max(stream.num_tokens - 1, 0) // seq_length
    lines = [f"training part: {stream.num_tokens:,} tokens, {samples:,} samples of {seq_length:,} an epoch"]
    if train_samples is not None:
        used = f"{train_samples / samples:,.2f} epochs" if samples else "impossible: not one sample in the data"
        lines.append(f"a plan of {train_samples:,} samples: {train_samples * seq_length:,} tokens, {used}")
    return lines


def _ids_line(file: IndexedFile, tokenizer: Tokenizer) -> str:
    """Ids at evenly spread places against the vocabulary."""
    places = np.linspace(0, max(file.num_tokens - _SHOWN_TOKENS, 0), 100).astype(int)
    count = min(_SHOWN_TOKENS, file.num_tokens)
    largest = max((int(file.read_tokens(int(place), count).max(initial=0)) for place in places), default=0)
    verdict = "fits" if largest < tokenizer.vocab_size else "DOES NOT FIT: prepared with another tokenizer"
    return f"largest id seen: {largest} of a vocabulary of {tokenizer.vocab_size}: {verdict}"


def _document_line(file: IndexedFile, sequence: int, tokenizer: Tokenizer | None) -> str:
    start, end = file.token_range(sequence, sequence + 1)
    ids = file.read_tokens(start, min(end - start, _SHOWN_TOKENS))
    fits = tokenizer is not None and int(ids.max(initial=0)) < tokenizer.vocab_size
    shown = repr(tokenizer.decode(ids)) if tokenizer is not None and fits else " ".join(map(str, ids))
    return f"sequence {sequence:,} ({end - start:,} tokens): {shown}{' ...' if end - start > _SHOWN_TOKENS else ''}"
