# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.errors import DataError
from megatron_core.evaluation.fields import field, label, numbered, text, texts


def test_any_of_several_names() -> None:
    assert field({"b": 1, "c": 2}, "a", "b", "c") == 1
    assert text({"a": None, "b": ""}, "a", "b") == ""
    assert texts({"a": ["x", "y"]}, "a", 2) == ("x", "y")


def test_labels_as_numbers_text_and_truth() -> None:
    for value in (1, "1", True):
        assert label({"label": value}, numbered(2), "label") == 1
    assert label({"answer": "2"}, numbered(2, first=1), "answer") == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda: field({"x": 1, "y": 2}, "a", "b"), "no field a or b; there are x, y"),
        (lambda: text({"a": 3}, "a"), "a is 3, not text"),
        (lambda: texts({"a": ["x", 1]}, "a"), "a is ['x', 1], not a list of texts"),
        (lambda: texts({"a": ["x"]}, "a", 4), "a has 1 texts, not 4"),
        (lambda: label({"label": -1}, numbered(2), "label"), "label is -1, not one of 0, '0', 1, '1'"),
        (lambda: label({"label": [1]}, {"e": 0}, "label"), "label is [1], not one of 'e'"),
    ],
)
def test_what_is_wrong_with_a_row(asked, message: str) -> None:
    with pytest.raises(DataError) as caught:
        asked()
    assert str(caught.value) == message
