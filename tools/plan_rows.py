# SPDX-License-Identifier: Apache-2.0
"""Tables of measured steps, as published ones are kept: a row each, in the schema of split_validation.csv."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from megatron_core.errors import DataError
from megatron_core.planner.row_memory import unit_bytes
from megatron_core.planner.rows import Row


@dataclass(frozen=True)
class Rows:
    """A file's."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def read_rows(path: Path) -> Rows:
    """Raises DataError for a file that is no table. Cells that are missing are empty, surplus ones are left out."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = tuple(reader.fieldnames or ())
            rows = [{name: (row[name] or "").strip() for name in columns} for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no table of rows: {error}") from error
    if not columns:
        raise DataError(f"{path} is empty: a first line with the names of columns is needed")
    return Rows(columns, tuple(rows))


def seconds(row: Row) -> float | None:
    """Measured, of a step; None where it was not."""
    return _positive(row, "iter_time_s")


def gigabytes(row: Row) -> float | None:
    """Measured memory, in 10^9 bytes; None where it was not, or the run ran out of it."""
    memory = _positive(row, "memory")
    if memory is None or row.get("oom", "") not in ("", "0"):
        return None
    return memory * unit_bytes(row) / 1e9


def _positive(row: Row, name: str) -> float | None:
    """A cell's number; None where there is none above 0."""
    try:
        value = float(row.get(name) or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def errors_text(predicted: Sequence[float], measured: Sequence[float]) -> str:
    """How far predictions are from what was measured."""
    errors = [abs(mine / theirs - 1) for mine, theirs in zip(predicted, measured)]
    return f"{len(errors)} rows, mean absolute error {sum(errors) / len(errors):.1%}, worst {max(errors):.1%}"
