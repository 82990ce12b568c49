# SPDX-License-Identifier: Apache-2.0
"""Values that JSON can hold, and any value as a short text for a message."""

import math
from collections.abc import Mapping
from typing import Any

from megatron_core.errors import CheckpointError

_MAX_DEPTH = 32


def quote(value: object) -> str:
    """Any value, short and on one line, for a message."""
    if isinstance(value, (dict, list)):  # may be large, or nested too deeply to be printed
        return "an object" if isinstance(value, dict) else "a list"
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_plain(what: str, value: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless `value` is JSON of finite numbers, not nested deeply."""
    pending: list[tuple[str, Any, int]] = [(what, value, 0)]
    while pending:
        where, item, depth = pending.pop()
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"{what} is nested more than {_MAX_DEPTH} deep")
        if isinstance(item, dict) and all(isinstance(key, str) for key in item):
            pending += [(f"{where}.{quote(key)[1:-1]}", inner, depth + 1) for key, inner in item.items()]
        elif isinstance(item, (list, tuple)):
            pending += [(f"{where}[{index}]", inner, depth + 1) for index, inner in enumerate(item)]
        elif isinstance(item, float) and not math.isfinite(item):
            raise CheckpointError(f"{where} is {item}, not a finite number")
        elif item is not None and not isinstance(item, (bool, int, float, str)):
            raise CheckpointError(f"{where} is a {type(item).__name__}, which JSON does not have")
