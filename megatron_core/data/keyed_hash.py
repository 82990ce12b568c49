# SPDX-License-Identifier: Apache-2.0
"""A 64-bit number from a key, the same in every process, on every machine and in every Python."""

import hashlib


def keyed_hash(*parts: int | str) -> int:
    """Hash the parts, order and boundaries included, to [0, 2^64). Python's own hash() differs between processes."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = f"{type(part).__name__}:{part}".encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little")
