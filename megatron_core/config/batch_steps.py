# SPDX-License-Identifier: Apache-2.0
"""The text of --step-batch-size-schedule: `0:768 250B:1536` = batch 768 from the start, 1536 from 250e9 tokens on."""

import itertools
import re

_ENTRY = re.compile(r"(\d+(?:\.\d+)?)([KMBT]?):(\d+)", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def parse_batch_steps(text: str) -> tuple[tuple[int, int], ...]:
    """(first token, batch size) of each stage, in order. Raises ValueError, which says what is wrong."""
    stages = []
    for word in text.split():
        match = _ENTRY.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is not TOKENS:BATCH, such as 250B:1536")
        stages.append((round(float(match[1]) * _UNITS[match[2].upper()]), int(match[3])))
    starts = [start for start, _ in stages]
    if not stages or starts[0] != 0:
        raise ValueError("the first stage must start at 0 tokens")
    if any(later <= earlier for earlier, later in itertools.pairwise(starts)):
        raise ValueError("stages must be in order of their tokens")
    if any(size < 1 for _, size in stages):
        raise ValueError("a batch has at least 1 sample")
    return tuple(stages)
