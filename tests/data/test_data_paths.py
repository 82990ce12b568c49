# SPDX-License-Identifier: Apache-2.0
"""Words and files that name data sets, and the mixtures that are refused."""

from fractions import Fraction
from pathlib import Path

import pytest

from megatron_core.config.data import DataConfig
from megatron_core.data.data_paths import BlendSpec, blend_specs, named_sets, parse_data_path
from megatron_core.errors import DataError


def test_three_forms() -> None:
    assert parse_data_path(["p"]) == BlendSpec(("p",), None)
    assert parse_data_path(["p", "q", "r"]) == BlendSpec(("p", "q", "r"), None)
    assert parse_data_path(["0.3", "p", "7e-1", "q"]) == BlendSpec(("p", "q"), (Fraction(3, 10), Fraction(7, 10)))
    assert parse_data_path(["1", "p"]) == BlendSpec(("p",), (Fraction(1),))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("0.5 p1 oops p2", "'oops' is out of place"),
        ("0.5 p1 0.5", "'0.5' at the end"),
        ("p1 0.5", "'p1' is out of place"),
        ("1 2", "'2' is out of place"),
        ("p q p", "p is named 2 times"),
        ("0 p 1 q", "weight 0 for p"),
        ("-1 p 2 q", "negative"),
        ("nan p 2 q", "finite"),
        ("", "no data set"),
    ],
)
def test_junk_is_refused(words: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_data_path(words.split())


def test_file_forms(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("0.3 p\n0.7 q\n")
    assert blend_specs(DataConfig(data_args_path=str(words))) == {"all": parse_data_path(["0.3", "p", "0.7", "q"])}
    parts = tmp_path / "parts.json"
    parts.write_text('{"train": ["0.3", "p", 0.7, "q"], "valid": ["r"], "test": []}')
    assert blend_specs(DataConfig(per_split_data_args_path=str(parts))) == {
        "train": parse_data_path(["0.3", "p", "0.7", "q"]),
        "valid": BlendSpec(("r",), None),
    }


@pytest.mark.parametrize("content", ["[]", "{}", '{"training": ["p"]}', '{"train": "p"}', '{"train": [["p"]]}', "{"])
def test_bad_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "parts.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"parts\.json"):
        blend_specs(DataConfig(per_split_data_args_path=str(path)))


def test_one_way_of_naming() -> None:
    both = DataConfig(train_data_path=("p",), valid_data_path=("q",))
    assert list(blend_specs(both)) == ["train", "valid"]
    with pytest.raises(DataError, match="--data-path and --valid-data-path"):
        blend_specs(DataConfig(data_path=("p",), valid_data_path=("q",)))
    with pytest.raises(DataError, match="none are given"):
        blend_specs(DataConfig())
    with pytest.raises(DataError, match="cannot read"):
        blend_specs(DataConfig(data_args_path="/nonexistent/file"))


def test_named_validation_sets() -> None:
    assert named_sets(["wiki=a/b", "code=c=d"]) == {"wiki": "a/b", "code": "c=d"}
    for words in (["wiki"], ["=x"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(DataError, match="NAME=PREFIX"):
            named_sets(words)
