# SPDX-License-Identifier: Apache-2.0
"""`--split 969,30,1`: which sequences of a data set are for training, validation and test.

Part i is [round(c_i·S), round(c_{i+1}·S)) with c the cumulated weights and Python's rounding, as in Megatron-LM, so
that the parts are disjoint, cover everything and match those of runs made there.
"""

import re
from fractions import Fraction
from itertools import pairwise

from megatron_core.data.blend import exact_weight
from megatron_core.errors import DataError

PARTS = ("train", "valid", "test")
DEFAULT_SPLIT = "969,30,1"

Split = tuple[Fraction, ...]


def parse_split(text: str) -> Split:
    """Shares of train, valid and test, adding up to 1. Raises DataError for anything but one to three numbers ≥ 0."""
    pieces = [piece.strip() for piece in re.split("[,/]", text)]
    if len(pieces) > len(PARTS) or not all(re.fullmatch(r"\d+\.?\d*|\.\d+", piece) for piece in pieces):
        raise DataError(
            f"--split {text!r}: give up to three numbers ≥ 0 for {', '.join(PARTS)}, such as {DEFAULT_SPLIT}"
        )
    weights = [exact_weight(piece) for piece in pieces]
    weights += [Fraction(0)] * (len(PARTS) - len(weights))
    if not any(weights):
        raise DataError(f"--split {text!r}: all shares are 0; give at least one that is not, such as {DEFAULT_SPLIT}")
    return tuple(weight / sum(weights) for weight in weights)


def split_ranges(split: Split, sequences: int) -> tuple[tuple[int, int], ...]:
    """First and end sequence of each part."""
    bounds = [round(sum(split[:i], Fraction(0)) * sequences) for i in range(len(split) + 1)]
    return tuple(pairwise(bounds))


def part_range(split: Split, sequences: int, part: str, prefix: str) -> tuple[int, int]:
    """First and end sequence of one part. Raises DataError when its share is above 0 and it holds none, or is 0."""
    number = PARTS.index(part)
    first, end = split_ranges(split, sequences)[number]
    if first == end:
        sizes = "/".join(str(b - a) for a, b in split_ranges(split, sequences))
        raise DataError(
            f"{prefix}: the {part} part is empty: --split gives {float(split[number]):.4g} of {sequences} sequences "
            f"to it (train/valid/test {sizes}); raise its share, use more documents, or give --{part}-data-path"
        )
    return first, end
