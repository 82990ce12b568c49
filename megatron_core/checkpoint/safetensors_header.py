# SPDX-License-Identifier: Apache-2.0
"""The header of a safetensors file: which tensor lies at which bytes. Written before any value, read from anybody.

8 bytes little-endian length, then JSON, padded with spaces; offsets count from the header's end.
"""

import json
from collections.abc import Iterable, Mapping

from megatron_core.checkpoint.manifest import DTYPES

_ALIGNMENT = 8


def encode_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The header of a file with these tensors one after the other: (key, dtype in DTYPES, shape, bytes)."""
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for key, dtype, shape, nbytes in tensors:
        assert key not in entries, f"{key} twice in one file"
        entries[key] = {
            "dtype": DTYPES[dtype].code,
            "shape": list(shape),
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
