# SPDX-License-Identifier: Apache-2.0
"""JSON that begins with a checksum of all that follows it, so that one flipped bit anywhere is noticed.

Reading refuses duplicate keys and numbers that are not finite.
"""

import json
from typing import Any, NoReturn

from megatron_core.checkpoint.blocks import checksum
from megatron_core.checkpoint.plain import quote
from megatron_core.errors import CheckpointError

_OPENING, _DIGITS = b'{"checksum":"', 16


def seal(content: dict[str, Any]) -> bytes:
    """JSON text that begins with a checksum of the rest of it. `content` is known to be plain and is not empty."""
    rest = b'",' + json.dumps(content, separators=(",", ":"), allow_nan=False).encode()[1:] + b"\n"
    return _OPENING + checksum(rest).encode() + rest


def unseal(text: bytes) -> dict[str, Any]:
    """The content of a sealed text. Raises CheckpointError where it is damaged or no JSON."""
    start = len(_OPENING) + _DIGITS
    if not text.startswith(_OPENING):
        raise CheckpointError(f"not a manifest: it begins with {quote(text[:24])}")
    if checksum(text[start:]).encode() != text[len(_OPENING) : start]:
        raise CheckpointError("damaged: its checksum does not match")
    try:
        content = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except RecursionError:
        raise CheckpointError("nested too deeply") from None
    except ValueError as error:
        raise CheckpointError(f"not JSON: {error}") from None
    assert isinstance(content, dict), "what begins with a brace is an object"
    del content["checksum"]
    return content


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        keys = [key for key, _ in pairs]
        raise CheckpointError(f"key {quote(next(key for key in keys if keys.count(key) > 1))} appears twice")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise CheckpointError(f"holds {name}, which is not a finite number")
