# SPDX-License-Identifier: Apache-2.0
"""Any rows are predicted, or say why not."""

import csv
from pathlib import Path

import pytest

from tests.published import published
from tools import plan
from tools.plan_predict import ADDED, MEMORY, REASON, TIME, TOO_LARGE, predict
from tools.plan_rows import read_rows


def rows(name: str) -> list[dict[str, str]]:
    return published(f"split_{name}.csv")


def test_columns_are_added_and_errors_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = tmp_path / "rows.csv", tmp_path / "pred.csv"
    some = rows("calibration")[:3]
    some[2]["cluster_key"] = "moon"
    with given.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(some[0]))
        writer.writeheader()
        writer.writerows(some)
    assert plan.main(["predict", str(given), "--out", str(out)]) == 0
    table = read_rows(out)
    assert table.columns[-4:] == ADDED
    assert [{name: row[name] for name in some[0]} for row in table.rows] == some
    assert abs(float(table.rows[0][TIME]) / float(some[0]["iter_time_s"]) - 1) < 0.2
    assert table.rows[2][TIME] == "" and "no hardware 'moon'" in table.rows[2][REASON]
    said = capsys.readouterr().err
    assert "time: 2 rows" in said and "1 of 3 rows could not be predicted" in said


def test_without_a_file_the_table_goes_to_the_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id\na\n")
    assert plan.main(["predict", str(tmp_path / "rows.csv")]) == 0
    (row,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row[TIME] == "" and row[REASON]


@pytest.mark.parametrize("column", list(rows("calibration")[0]))
@pytest.mark.parametrize("value", [None, "", "nan", "inf", "-3", "0", "1e9", "tea"])
def test_no_cell_brings_it_down(column: str, value: str | None) -> None:
    row = rows("calibration")[0]
    if value is None:
        del row[column]
    else:
        row[column] = value
    found = predict(row)
    assert bool(found[TIME]) or found[REASON]


def test_memory_and_whether_it_suffices() -> None:
    for row in rows("validation"):
        if row["id"].startswith("kort-530B") and row["memory"]:
            found = predict(row)
            assert float(found[MEMORY]) == pytest.approx(float(row["memory"]) * 2**30 / 1e9, rel=0.05)
    too_large = predict(next(row for row in rows("validation") if row["oom"] == "1"))
    assert too_large[TOO_LARGE] == "1"


def test_rows_of_all_kinds() -> None:
    """Every published row is predicted, or has a reason that names what is not planned."""
    for row in [*rows("reserve")[::9], *rows("validation")[::9]]:
        found = predict(row)
        assert found[TIME] or "is not planned" in found[REASON], (row["id"], found[REASON])
