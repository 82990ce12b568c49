# SPDX-License-Identifier: Apache-2.0
"""Fields of a row, by any of the names that the copies of a data set give them. All raise DataError."""

from collections.abc import Mapping
from typing import Any

from megatron_core.errors import DataError
from megatron_core.evaluation.question import Row


def field(row: Row, *names: str) -> Any:
    """The first of these that the row has."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(f"no field {' or '.join(names)}; there are {', '.join(map(str, row)) or 'none'}")


def text(row: Row, *names: str) -> str:
    """The same, which must be a string."""
    value = field(row, *names)
    if not isinstance(value, str):
        raise DataError(f"{names[0]} is {value!r:.60}, not text")
    return value


def texts(row: Row, name: str, count: int | None = None) -> tuple[str, ...]:
    """A list of strings, of `count` where that is given."""
    values = field(row, name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise DataError(f"{name} is {values!r:.60}, not a list of texts")
    if count is not None and len(values) != count:
        raise DataError(f"{name} has {len(values)} texts, not {count}")
    return tuple(values)


def label(row: Row, indices: Mapping[Any, int], *names: str) -> int:
    """Which answer is right, from the value that the row has for it. True and False are 1 and 0, as Python has it."""
    value = field(row, *names)
    try:
        return indices[value]
    except (KeyError, TypeError):
        known = ", ".join(map(repr, indices))
        raise DataError(f"{names[0]} is {value!r:.60}, not one of {known}") from None


def numbered(count: int, first: int = 0) -> dict[Any, int]:
    """Labels that are numbers from `first` on, written as numbers or as text."""
    return {form(first + index): index for index in range(count) for form in (int, str)}
