# SPDX-License-Identifier: Apache-2.0
"""`--mock-data`: tokens without files that a model can still learn, so that a trial run shows a falling loss.

Each token is the one before plus a fixed stride, modulo the vocabulary, except that one in eight is drawn anew:
a bigram model reaches about ln(8)·⅛ + ln(8/7)·⅞ + ln(v)·⅛ nats a token.
"""

from dataclasses import dataclass

import numpy as np

from megatron_core.data.keyed_hash import keyed_hash
from megatron_core.data.sample import Sample

_FRESH_EVERY = 8


@dataclass(frozen=True)
class MockSamples:
    """Samples that are a function of (seed, part, number) alone. The stride depends on the seed, not on the part."""

    vocab_size: int
    seq_length: int
    seed: int
    part: str
    num_samples: int = 2**62

    def sample(self, number: int) -> Sample:
        """Sample of that number."""
        length = self.seq_length + 1
        bits = np.random.Philox(key=keyed_hash("mock", self.seed, self.part, number)).random_raw(2 * length)
        fresh = bits[:length] % _FRESH_EVERY == 0
        fresh[0] = True
        drawn = (bits[length:] % self.vocab_size).astype(np.int64)
        last_fresh = np.maximum.accumulate(np.where(fresh, np.arange(length), 0))
        stride = 1 + keyed_hash("stride", self.seed) % max(self.vocab_size - 1, 1)
        tokens = (drawn[last_fresh] + (np.arange(length) - last_fresh) * stride) % self.vocab_size
        return Sample(number, tokens, self.seq_length)

    def source(self, number: int) -> str:
        """No file."""
        return "--mock-data"
