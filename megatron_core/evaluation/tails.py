# SPDX-License-Identifier: Apache-2.0
"""Sequences of which the last tokens are scored; and longer ones, that a window slides over, each token scored once.

A window of c tokens moves by a stride of t: its last t tokens are scored, the others are only their context. A stride
of 1 gives each token all the context that the model can have, one of c only what its window happens to hold. With
context 4 and stride 2 (x scored, . context, | the start of the document):

    | x x x x                 the first window scores all that it holds
        . . x x
            . . x x
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tail:
    """Tokens of which the last are scored; the others are their context."""

    tokens: Sequence[int]
    scored: int

    def __post_init__(self) -> None:
        assert 0 < self.scored < len(self.tokens), f"{self.scored} of {len(self.tokens)} tokens cannot be scored"


def windows(tokens: Sequence[int], first: int, *, context: int, stride: int) -> Iterator[Tail]:
    """Windows that score each of tokens[first:] once.

    first: at least 1, since nothing foretells the very first; context: the most tokens that the model reads at once;
    stride: in [1, context].
    """
    assert first >= 1, "nothing stands before the first token"
    assert 1 <= stride <= context, f"stride {stride} with context {context}"
    done = first
    while done < len(tokens):
        end = min(len(tokens), max(done + stride, context + 1))
        yield Tail(tokens[max(end - context - 1, 0) : end], end - done)
        done = end
