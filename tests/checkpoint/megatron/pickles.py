# SPDX-License-Identifier: Apache-2.0
"""Pickles to be read, honest ones and others."""

from pathlib import Path
from typing import Any

from megatron_core.checkpoint.megatron.file_slice import FileSlice
from megatron_core.checkpoint.megatron.unpickle import unpickle


def read(folder: Path, data: bytes, **persistent: Any) -> tuple[Any, frozenset[str]]:
    """What the restricted machine makes of a pickle."""
    path = folder / "data.pkl"
    path.write_bytes(data)
    return unpickle(FileSlice(path), **persistent)
