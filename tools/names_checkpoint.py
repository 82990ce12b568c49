# SPDX-License-Identifier: Apache-2.0
"""Whether a command line is about a checkpoint; apart from what reads them, which takes seconds to import."""

import re
from collections.abc import Sequence
from pathlib import Path


def names_checkpoint(words: Sequence[str]) -> bool:
    """True where some word names a step, or a directory that comes first or holds steps."""
    return Path(words[0]).is_dir() or any(
        re.fullmatch(r"step_[0-9]+", Path(word).name) or (Path(word).is_dir() and any(Path(word).glob("step_*")))
        for word in words
        if not word.startswith("-")
    )
