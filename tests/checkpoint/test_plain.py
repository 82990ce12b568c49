# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from megatron_core.checkpoint.plain import check_plain, quote
from megatron_core.errors import CheckpointError


def test_what_json_holds() -> None:
    check_plain("state", {"a": [1, 2.5, None, True, "x", {"b": (1, 2)}]})


@pytest.mark.parametrize(
    "value, message",
    [
        ({"a": {"b": [0, math.nan]}}, r"^state\.a\.b\[1\] is nan, not a finite number$"),
        ({"a": -math.inf}, "not a finite number"),
        ({"a": {1, 2}}, r"^state\.a is a set, which JSON does not have$"),
        ({1: 2}, "dict"),
    ],
)
def test_what_it_does_not(value: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_plain("state", value)


def test_depth_is_bounded() -> None:
    deep: dict = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(CheckpointError, match="nested more than 32 deep"):
        check_plain("config", deep)


def test_quotes_are_short_and_on_one_line() -> None:
    assert quote("a\nb") == r"'a\nb'"
    assert len(quote("x" * 1000)) == 80
    assert (quote([[]]), quote({})) == ("a list", "an object")
