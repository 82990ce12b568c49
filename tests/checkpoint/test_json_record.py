# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest

from megatron_core.checkpoint.json_record import Record
from megatron_core.errors import CheckpointError

RECORD = Record("it", {"n": 3, "t": "x", "l": [1, 2], "o": {"a": None}, "f": 2.0, "inf": 1e999, "b": True, "neg": -1})


def test_right_types() -> None:
    assert (RECORD.integer("n"), RECORD.text("t"), RECORD.array("l"), RECORD.integers("l")) == (3, "x", [1, 2], (1, 2))
    assert (RECORD.number("f"), RECORD.number("n"), RECORD.number("neg")) == (2.0, 3.0, -1.0)
    assert (RECORD.mapping("o"), RECORD.value("b")) == ({"a": None}, True)
    RECORD.has_exactly("n", "t", "l", "o", "f", "inf", "b", "neg")


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda: RECORD.value("none"), "^it has no none$"),
        (lambda: RECORD.integer("t"), "^it: t is 'x', not a whole number"),
        (lambda: RECORD.integer("f"), r"^it: f is 2\.0, not a whole"),
        (lambda: RECORD.integer("inf"), "^it: inf is inf, not a finite"),
        (lambda: RECORD.integer("b"), "^it: b is True, not a whole"),
        (lambda: RECORD.integer("neg"), "^it: neg is -1, not a whole"),
        (lambda: RECORD.number("inf"), "^it: inf is inf, not a finite number$"),
        (lambda: RECORD.number("b"), "^it: b is True, not a finite number$"),
        (lambda: RECORD.number("t"), "^it: t is 'x', not a finite number$"),
        (lambda: Record("it", {"n": 10**400}).number("n"), "^it: n is 1000.*, not a finite number$"),
        (lambda: RECORD.text("n"), "^it: n is 3, not a text$"),
        (lambda: RECORD.array("o"), "^it: o is an object, not a list$"),
        (lambda: RECORD.mapping("l"), "^it: l is a list, not an object$"),
        (lambda: Record("it", {"l": [1, "x"]}).integers("l"), "^it: l is 'x', not a whole"),
        (lambda: Record("it", {"n": 2**62 + 1}).integer("n"), "not a whole number from 0 to 2"),
        (lambda: Record("it", [1]), "^it is a list, not an object$"),
        (lambda: RECORD.has_exactly("n", "t", "q", "r"), "^it has no q, r$"),
        (lambda: RECORD.has_exactly("n", "t", "l", "o", "f", "inf"), "^it has unknown keys: 'b, neg'$"),
    ],
)
def test_wrong_ones(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        ask()
