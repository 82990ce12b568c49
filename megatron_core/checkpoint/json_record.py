# SPDX-License-Identifier: Apache-2.0
"""Strict reading of parsed JSON: each field is asked for by type, and what is not as expected is a CheckpointError."""

import math
import sys
from typing import Any

from megatron_core.checkpoint.plain import quote
from megatron_core.errors import CheckpointError

MAX_INTEGER = 2**62


class Record:
    """A JSON object whose fields are asked for by type."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise CheckpointError(f"{where} is {quote(value)}, not an object")
        self._where, self._value = where, value

    def has_exactly(self, *keys: str) -> None:
        """Raise CheckpointError where a key is missing or unknown."""
        missing, unknown = [key for key in keys if key not in self._value], sorted(self._value.keys() - {*keys})
        if missing:
            raise CheckpointError(f"{self._where} has no {', '.join(missing)}")
        if unknown:
            raise CheckpointError(f"{self._where} has unknown keys: {quote(', '.join(unknown))}")

    def value(self, key: str) -> object:
        """The field, of whatever type."""
        if key not in self._value:
            raise CheckpointError(f"{self._where} has no {key}")
        return self._value[key]

    def integer(self, key: str) -> int:
        """A whole number."""
        return integer_of(self.value(key), f"{self._where}: {key}")

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.value(key)
        largest = sys.float_info.max
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -largest <= value <= largest:
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not a finite number")
        return float(value)

    def text(self, key: str) -> str:
        """A string."""
        return text_of(self.value(key), f"{self._where}: {key}")

    def array(self, key: str) -> list[Any]:
        """A list."""
        value = self.value(key)
        if not isinstance(value, list):
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not a list")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """An object."""
        value = self.value(key)
        if not isinstance(value, dict):
            raise CheckpointError(f"{self._where}: {key} is {quote(value)}, not an object")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers."""
        return tuple(integer_of(item, f"{self._where}: {key}") for item in self.array(key))


def integer_of(value: object, where: str) -> int:
    """`value` if it is a whole number from 0 to 2^62, which no size exceeds."""
    if isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{where} is {value}, not a finite number")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_INTEGER:
        raise CheckpointError(f"{where} is {quote(value)}, not a whole number from 0 to 2^62")
    return value


def text_of(value: object, where: str) -> str:
    """`value` if it is a string."""
    if not isinstance(value, str):
        raise CheckpointError(f"{where} is {quote(value)}, not a text")
    return value
