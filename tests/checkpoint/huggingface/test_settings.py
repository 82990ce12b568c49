# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.checkpoint.huggingface.settings import Settings, read_json
from megatron_core.errors import CheckpointError


def settings(**values: object) -> Settings:
    return Settings("c.json", values)


def test_values_and_what_an_absent_key_means() -> None:
    found = settings(n=3, eps=0, tied=False, act="silu", kinds=["a"], window=None)
    assert (found.integer("n"), found.integer("m", 4), found.number("eps")) == (3, 4, 0.0)
    assert (found.boolean("tied", True), found.text("act"), found.texts("kinds")) == (False, "silu", ["a"])
    assert (found.optional("window", 7), found.optional("other", 7), found.texts("none")) == (None, 7, [])
    found.refuse_rest()


@pytest.mark.parametrize(
    ("method", "value", "message"),
    [
        ("integer", "3", "n is '3', not a positive integer"),
        ("integer", True, "not a positive integer"),
        ("integer", 0, "not a positive integer"),
        ("number", -1.0, "not a number of at least 0"),
        ("number", float("nan"), "not a number of at least 0"),
        ("text", 3, "not a string"),
        ("texts", [3], "n is a list, not a list of strings"),
        ("integer", None, "c.json: n is missing"),
    ],
)
def test_wrong_values_are_named(method: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        getattr(settings(n=value), method)("n")


def test_every_key_that_nobody_read_is_named() -> None:
    found = settings(hidden_size=8, logit_scale=2.0, use_cache=True, quantization_config={}, none=None)
    found.integer("hidden_size")
    with pytest.raises(CheckpointError, match=r"logit_scale 2.0, quantization_config an object: not understood"):
        found.refuse_rest()
    found.refuse_rest(("logit_scale", "quantization_config"))


def test_a_key_with_one_possible_value() -> None:
    settings(scaled=True).require("scaled", True, "why")
    settings().require("scaled", True, "why")
    with pytest.raises(CheckpointError, match="scaled is False, not True: why"):
        settings(scaled=False).require("scaled", True, "why")
    with pytest.raises(CheckpointError, match="scaled is missing"):
        settings().require("scaled", True, "why", default=None)


def test_names_of_one_number() -> None:
    assert settings(a=2, b=2.0).same_number("a", "b", "c") == 2.0
    assert settings(c=1).same_number("a", "b") is None
    with pytest.raises(CheckpointError, match="a 2, b 3: these are names of one number"):
        settings(a=2, b=3).same_number("a", "b")


def test_objects_that_say_the_same_twice() -> None:
    both = settings(a={"x": 1, "y": 2}, b={"y": 2, "z": 3}, c=None).merged("a", "b", "c")
    assert (both.integer("x"), both.integer("y"), both.integer("z")) == (1, 2, 3)
    with pytest.raises(CheckpointError, match="y is 2 or 3 in a and b"):
        settings(a={"y": 2}, b={"y": 3}).merged("a", "b")
    with pytest.raises(CheckpointError, match="a is 5, not an object"):
        settings(a=5).merged("a")


def test_files_that_are_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with pytest.raises(CheckpointError, match=r"cannot read .*c\.json: No such file"):
        read_json(path)
    for text, message in (("{", "not JSON"), ("[" * 10**5, "not JSON"), ("[1]", "holds a list, not an object")):
        path.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            read_json(path)
