# SPDX-License-Identifier: Apache-2.0
import csv
from pathlib import Path

import pytest

from tests.published import published
from tools import plan


def test_constants_are_printed_with_what_they_leave(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    some = published("split_calibration.csv")[:3]
    some[1]["precision"] = "fp8"
    some[2]["iter_time_s"] = ""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(some[0]))
        writer.writeheader()
        writer.writerows(some)
    assert plan.main(["fit", str(path)]) == 0
    said = capsys.readouterr()
    assert "matmul_share: " in said.out and "1 rows, mean absolute error" in said.out
    assert "fp8 products are not planned" in said.err


def test_a_table_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("id,iter_time_s\na,\n")
    assert plan.main(["fit", str(tmp_path / "rows.csv")]) == 2
    assert "no row with a time" in capsys.readouterr().err
