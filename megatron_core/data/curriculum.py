# SPDX-License-Identifier: Apache-2.0
"""`--blend-curriculum`: blend weights that change at given numbers of consumed tokens.

- {tokens: 0,           weights: [0.7, 0.2, 0.1]}
- {tokens: 300_000_000, weights: [0.4, 0.3, 0.3]}
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from megatron_core.data.blend import Blend, BlendCurriculum
from megatron_core.errors import DataError

_FORM = "give a YAML list of {tokens: COUNT, weights: [one a data set]}, in the flag or in a file that it names"


def parse_curriculum(text: str, prefixes: Sequence[str], base: Blend, seq_length: int) -> BlendCurriculum:
    """Read the flag. `base` holds until the first entry, where that does not start at 0 tokens.

    A change takes effect with the first sample that starts at or after its token count.
    Raises DataError for anything that does not fit the form or the data sets.
    """
    starts, blends = [], []
    for entry in _entries(text):
        tokens, weights = entry["tokens"], entry["weights"]
        if len(weights) != len(prefixes):
            raise DataError(
                f"--blend-curriculum: {len(weights)} weights at {tokens} tokens for {len(prefixes)} data sets "
                f"({', '.join(prefixes)}); give one for each, 0 where it is not used"
            )
        starts.append(-(-tokens // seq_length))
        blends.append(Blend(weights))
    if starts[0] > 0:
        starts.insert(0, 0)
        blends.insert(0, base)
    return BlendCurriculum(tuple(starts), tuple(blends))


def _entries(text: str) -> list[dict[str, Any]]:
    try:
        content = yaml.safe_load(text if text.lstrip().startswith(("[", "-")) else Path(text).read_text())
    except OSError as error:
        raise DataError(f"--blend-curriculum {text}: cannot read: {error.strerror}; {_FORM}") from error
    except yaml.YAMLError as error:
        raise DataError(f"--blend-curriculum {text}: not YAML: {error}; {_FORM}") from error
    if not isinstance(content, list) or not content or not all(_is_entry(entry) for entry in content):
        raise DataError(f"--blend-curriculum {text}: {_FORM}")
    return content


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or set(entry) != {"tokens", "weights"}:
        return False
    tokens, weights = entry["tokens"], entry["weights"]
    whole = isinstance(tokens, int) and tokens >= 0
    return whole and isinstance(weights, list) and all(isinstance(weight, int | float) for weight in weights)
