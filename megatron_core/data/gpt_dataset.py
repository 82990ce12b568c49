# SPDX-License-Identifier: Apache-2.0
"""Fixed-length samples cut from the flat token stream of a range of sequences.

    stream   t0 t1 t2 ........................ t(T−1)      documents end to end, no separators added
    sample i            tokens[i·s : i·s + s + 1]          neighbours share one token: target here, input there

Training sees every sample once an epoch, in an order that a keyed permutation of that epoch gives, without end.
Nothing is built or cached, so start-up takes the same time for any number of documents.
"""

from dataclasses import dataclass

import numpy as np

from megatron_core.data.indexed_file import IndexedFile
from megatron_core.data.permutation import Permutation
from megatron_core.data.sample import Sample
from megatron_core.errors import DataError


@dataclass(frozen=True)
class TokenStream:
    """Tokens [start, end) of a file."""

    file: IndexedFile
    start: int
    end: int

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.end - self.start

    def read(self, offset: int, count: int) -> np.ndarray:
        """Tokens [offset, offset + count) of the stream, [count] int64."""
        return self.file.read_tokens(self.start + offset, count).astype(np.int64)


def open_stream(file: IndexedFile, sequences: tuple[int, int] | None = None) -> TokenStream:
    """Stream of the sequences [first, end) of a file; None: all."""
    return TokenStream(file, *file.token_range(*(sequences or (0, file.num_sequences))))


@dataclass(frozen=True)
class ShuffledSamples:
    """Endless training samples of one stream. `key` names the stream among others: seed and data set."""

    stream: TokenStream
    seq_length: int
    key: tuple[int | str, ...]

    def __post_init__(self) -> None:
        if self.samples_per_epoch < 1:
            raise DataError(
                f"{self.stream.file.prefix}: {self.stream.num_tokens} tokens to train on, but one sample takes "
                f"{self.seq_length + 1} (--seq-length + 1); lower --seq-length, or give this part more data"
            )

    @property
    def samples_per_epoch(self) -> int:
        """⌊(T − 1) / s⌋; the tail that fills no sample is left out."""
        return (self.stream.num_tokens - 1) // self.seq_length

    def offset(self, number: int) -> int:
        """First token of a sample within the stream."""
        epoch, position = divmod(number, self.samples_per_epoch)
        return Permutation(self.samples_per_epoch, ("epoch", *self.key, epoch))(position) * self.seq_length

    def sample(self, number: int) -> Sample:
        """Sample of that number, counted over all epochs."""
        return Sample(number, self.stream.read(self.offset(number), self.seq_length + 1), self.seq_length)

    def source(self, number: int) -> str:
        """Prefix of the file."""
        return self.stream.file.prefix


@dataclass(frozen=True)
class SequentialSamples:
    """All of one stream in order, for validation: T − 1 targets, each once; the last sample is padded with 0."""

    stream: TokenStream
    seq_length: int

    def __post_init__(self) -> None:
        if self.stream.num_tokens < 2:
            raise DataError(
                f"{self.stream.file.prefix}: {self.stream.num_tokens} tokens to evaluate on; at least 2 are needed "
                "(one to read, one to predict)"
            )

    @property
    def num_samples(self) -> int:
        """⌈(T − 1) / s⌉."""
        return -(-(self.stream.num_tokens - 1) // self.seq_length)

    def sample(self, number: int) -> Sample:
        """Sample of that number."""
        assert 0 <= number < self.num_samples, f"sample {number} of {self.num_samples}"
        first = number * self.seq_length
        targets = min(self.seq_length, self.stream.num_tokens - 1 - first)
        tokens = np.zeros(self.seq_length + 1, dtype=np.int64)
        tokens[: targets + 1] = self.stream.read(first, targets + 1)
        return Sample(number, tokens, targets)

    def source(self, number: int) -> str:
        """Prefix of the file."""
        return self.stream.file.prefix
