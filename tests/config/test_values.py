# SPDX-License-Identifier: Apache-2.0
from typing import Literal

import pytest

from megatron_core.config.values import from_words, from_yaml, to_yaml, value_type

INT, FLOAT, TEXT, SWITCH = (value_type(t) for t in (int, float, str, bool))
MAYBE = value_type(int | None)
CHOICE = value_type(Literal["adam", "sgd"])
TEXTS = value_type(tuple[str, ...])
RAMP = value_type(tuple[int, int, int] | None)


def test_annotations_are_taken_apart():
    assert (MAYBE.scalar, MAYBE.optional, MAYBE.length) == (int, True, None)
    assert (CHOICE.scalar, CHOICE.choices) == (str, ("adam", "sgd"))
    assert (TEXTS.length, RAMP.length, RAMP.optional) == ("any", 3, True)
    with pytest.raises(AssertionError, match="config fields cannot be"):
        value_type(dict)


def test_descriptions():
    assert [k.describe() for k in (INT, SWITCH, CHOICE, TEXTS, RAMP)] == [
        "INT",
        "switch",
        "adam|sgd",
        "TEXT ...",
        "INT INT INT",
    ]


@pytest.mark.parametrize(
    ("kind", "words", "value"),
    [
        (INT, ["300_000_000"], 300_000_000),
        (FLOAT, ["6.0e-5"], 6e-5),
        (FLOAT, [".01"], 0.01),
        (TEXT, ["969, 30, 1"], "969, 30, 1"),
        (SWITCH, [], True),
        (MAYBE, ["None"], None),
        (CHOICE, ["sgd"], "sgd"),
        (TEXTS, ["0.5", "a"], ("0.5", "a")),
        (TEXTS, [], ()),
        (RAMP, ["32", "32", "1953125"], (32, 32, 1953125)),
    ],
)
def test_words(kind, words, value):
    assert from_words(kind, words) == value


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        (INT, ["1.5"], "is '1.5', not a whole number"),
        (INT, [], "needs a value: INT"),
        (FLOAT, ["x"], "is 'x', not a number"),
        (FLOAT, ["nan"], "is nan, not a finite number"),
        (SWITCH, ["true"], "is a switch and takes no value"),
        (CHOICE, ["lion"], "is 'lion'; choose adam or sgd"),
        (TEXT, ["a", "b"], "takes one value, not 2: a b"),
        (RAMP, ["1", "2"], "takes 3 values, not 2: INT INT INT"),
    ],
)
def test_bad_words(kind, words, message):
    with pytest.raises(ValueError, match=message):
        from_words(kind, words)


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (INT, 3, 3),
        (FLOAT, 3, 3.0),
        (FLOAT, "6e-5", 6e-5),  # YAML 1.1 reads it as text
        (SWITCH, False, False),
        (MAYBE, None, None),
        (TEXTS, [0.5, "a"], ("0.5", "a")),
        (TEXTS, "a", ("a",)),
        (RAMP, [1, 2, 3], (1, 2, 3)),
    ],
)
def test_yaml(kind, given, value):
    got = from_yaml(kind, given)
    assert got == value
    assert type(got) is type(value)
    assert from_yaml(kind, to_yaml(got)) == got


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (INT, "3", "is '3', not a whole number"),
        (INT, True, "is True, not a whole number"),
        (INT, 1.0, "is 1.0, not a whole number"),
        (INT, None, "is empty; it needs a value: INT"),
        (FLOAT, [1.0], r"is \[1.0\], not a number"),
        (FLOAT, float("inf"), "is inf, not a finite number"),
        (SWITCH, "yes", "is 'yes', not true or false"),
        (TEXT, 5, "is 5, not text; put quotes around it"),
        (TEXTS, [True], "is True, not text"),
        (CHOICE, "lion", "choose adam or sgd"),
        (RAMP, [1], "takes 3 values, not 1"),
    ],
)
def test_bad_yaml(kind, given, message):
    with pytest.raises(ValueError, match=message):
        from_yaml(kind, given)
