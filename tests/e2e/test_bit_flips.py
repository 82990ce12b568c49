# SPDX-License-Identifier: Apache-2.0
"""One flipped bit, wherever it is, is never loaded. `benchmarks/chaos.py` flips a hundred.

Nothing in a checkpoint's files is free to change: manifests and headers are checksummed to the last blank.
"""

import random
from pathlib import Path

import pytest

from tests.e2e.flip_proof import Flipper, FlipTally


@pytest.mark.parametrize("flags", ["", "--bf16"])
def test_a_flipped_bit_is_found_and_an_older_checkpoint_taken(flags: str, tmp_path: Path) -> None:
    """bf16: with masters, whose numbers the weights have, so that a resume does not read the weights."""
    tally = FlipTally()
    flipper = Flipper(tmp_path, flags, random.Random(6), tally)
    for _ in range(6):
        flipper.flip()
    flipper.flip(weights_only=True)
    flipper.flip(all_steps=True)
    assert tally.problems == []
    assert tally.flips == 8 and len(tally.fallen_back) >= 3, tally
