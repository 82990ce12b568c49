# SPDX-License-Identifier: Apache-2.0
from tools.text_table import text_table


def test_columns_are_as_wide_as_their_widest_cell():
    lines = text_table(("name", "size"), [("a", "7"), ("longer", "1,234")], right=("size",))
    assert lines == ["name     size", "a           7", "longer  1,234"]


def test_a_header_alone_and_no_spaces_at_the_end():
    assert text_table(("a", "b"), []) == ["a  b"]
    assert text_table(("a", "b"), [("1", "")]) == ["a  b", "1"]
