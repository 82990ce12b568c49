# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from megatron_core.errors import DataError
from tools.plan_rows import errors_text, gigabytes, read_rows, seconds


def test_cells_that_are_missing_are_empty_and_surplus_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("\ufeffid,tp\na, 8 \nb\nc,1,2,3\n", encoding="utf-8")
    table = read_rows(path)
    assert table.columns == ("id", "tp")
    assert table.rows == ({"id": "a", "tp": "8"}, {"id": "b", "tp": ""}, {"id": "c", "tp": "1"})


def test_what_is_no_table_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x01")
    for name, message in (("empty.csv", "is empty"), ("bytes.csv", "no table"), ("none.csv", "no table")):
        with pytest.raises(DataError, match=message):
            read_rows(tmp_path / name)


@pytest.mark.parametrize("text, value", [("1.5", 1.5), ("", None), ("nan", None), ("-1", None), ("x", None)])
def test_numbers_above_0(text: str, value: float | None) -> None:
    assert seconds({"iter_time_s": text}) == value
    assert seconds({}) is None


def test_memory_is_in_the_unit_of_its_kind() -> None:
    assert gigabytes({"memory": "2", "memory_kind": "GiB: formula"}) == 2 * 2**30 / 1e9
    assert gigabytes({"memory": "1000", "memory_kind": "MiB nvidia-smi"}) == 1.048576
    assert gigabytes({"memory": "3", "memory_kind": "GB per GPU", "oom": "0"}) == 3
    assert gigabytes({"memory": "3", "oom": "1"}) is None


def test_errors_are_relative_to_what_was_measured() -> None:
    assert errors_text([1.1, 1.8], [1.0, 2.0]) == "2 rows, mean absolute error 10.0%, worst 10.0%"
