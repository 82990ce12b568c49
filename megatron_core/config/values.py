# SPDX-License-Identifier: Apache-2.0
"""Values of fields: from words of the command line, from YAML, and back to YAML.

Both readers raise ValueError with the end of a sentence ("is not a whole number"), so that the caller can say where the
value stood and collect all errors instead of stopping at the first.
"""

import math
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Scalar = type[bool] | type[int] | type[float] | type[str]


@dataclass(frozen=True, kw_only=True)
class ValueType:
    """A field's annotation, taken apart."""

    scalar: Scalar
    choices: tuple[str, ...] = ()
    """The words allowed, for a Literal."""
    optional: bool = False
    """None is a value too."""
    length: int | Literal["any"] | None = None
    """Elements of a tuple; None for a single value."""

    def describe(self) -> str:
        """How the value is written, for help and errors."""
        if self.scalar is bool:
            return "switch"
        word = "|".join(self.choices) or {int: "INT", float: "FLOAT", str: "TEXT"}[self.scalar]
        if self.length == "any":
            return f"{word} ..."
        return " ".join([word] * (self.length or 1))


def value_type(annotation: object) -> ValueType:
    """Take a field's annotation apart: a scalar, a Literal of strings, a tuple of scalars, or one of these or None."""
    arguments = typing.get_args(annotation)
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (inner,) = [a for a in arguments if a is not type(None)]
        kind = value_type(inner)
        return ValueType(scalar=kind.scalar, choices=kind.choices, length=kind.length, optional=True)
    if typing.get_origin(annotation) is Literal:
        return ValueType(scalar=str, choices=arguments)
    if typing.get_origin(annotation) is tuple:
        length: int | Literal["any"] = "any" if arguments[-1] is Ellipsis else len(arguments)
        return ValueType(scalar=arguments[0], length=length)
    assert annotation in (bool, int, float, str), f"config fields cannot be {annotation}"
    return ValueType(scalar=annotation)


def from_words(kind: ValueType, words: Sequence[str]) -> object:
    """The value that `words` after a flag mean; a switch takes none and means True."""
    if kind.scalar is bool:
        if words:
            raise ValueError("is a switch and takes no value; its opposite starts with --no-")
        return True
    if not words and kind.length != "any":
        raise ValueError(f"needs a value: {kind.describe()}")
    if kind.optional and len(words) == 1 and words[0].lower() == "none":
        return None
    if kind.length is None:
        if len(words) > 1:
            raise ValueError(f"takes one value, not {len(words)}: {' '.join(words)}")
        return _scalar_from_word(kind, words[0])
    return _sized(kind, [_scalar_from_word(kind, word) for word in words])


def from_yaml(kind: ValueType, value: object) -> object:
    """The field's value for a value that a YAML file holds."""
    if value is None:
        if kind.optional:
            return None
        raise ValueError(f"is empty; it needs a value: {kind.describe()}")
    if kind.length is None:
        return _scalar_from_yaml(kind, value)
    return _sized(kind, [_scalar_from_yaml(kind, v) for v in (value if isinstance(value, list) else [value])])


def to_yaml(value: object) -> object:
    """The value as plain YAML data, such that `from_yaml` gives it back."""
    return list(value) if isinstance(value, tuple) else value


def _sized(kind: ValueType, values: list[object]) -> tuple[object, ...]:
    if isinstance(kind.length, int) and len(values) != kind.length:
        raise ValueError(f"takes {kind.length} values, not {len(values)}: {kind.describe()}")
    return tuple(values)


def _scalar_from_word(kind: ValueType, word: str) -> object:
    if kind.scalar is int:
        return _number(int, word, "a whole number")
    if kind.scalar is float:
        return _finite(_number(float, word, "a number"))
    return _chosen(kind, word)


def _scalar_from_yaml(kind: ValueType, value: object) -> object:
    if kind.scalar is bool:
        if isinstance(value, bool):
            return value
        raise ValueError(f"is {value!r}, not true or false")
    if kind.scalar is str:
        # Weights of a blend stand as numbers among the strings of a list; a number alone is more often a slip.
        if isinstance(value, str):
            return _chosen(kind, value)
        if kind.length is not None and isinstance(value, (int, float)) and not isinstance(value, bool):
            return repr(value)
        raise ValueError(f"is {value!r}, not text; put quotes around it")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"is {value!r}, not {'a whole number' if kind.scalar is int else 'a number'}")
    if kind.scalar is int:
        if isinstance(value, int):
            return value
        raise ValueError(f"is {value!r}, not a whole number")
    # YAML 1.1 reads 6e-5, without a point, as text.
    return _finite(_number(float, value, "a number"))


def _number(convert: Callable[[int | float | str], float], value: int | float | str, noun: str) -> float:
    try:
        return convert(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is {value!r}, not {noun}") from error


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"is {number}, not a finite number")
    return number


def _chosen(kind: ValueType, word: str) -> str:
    if kind.choices and word not in kind.choices:
        raise ValueError(f"is {word!r}; choose {' or '.join(kind.choices)}")
    return word
