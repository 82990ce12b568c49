# SPDX-License-Identifier: Apache-2.0
"""`tools/plan.py predict`: time and memory of steps that others have measured, row by row."""

import argparse
import csv
import sys
from pathlib import Path
from typing import TextIO

from megatron_core.errors import DataError, UserError
from megatron_core.planner.constants import Constants
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.row_memory import row_memory
from megatron_core.planner.rows import Row, row_hardware, row_workload
from megatron_core.planner.step_time import StepModel
from tools.plan_rows import Rows, errors_text, gigabytes, read_rows, seconds

TIME, MEMORY, TOO_LARGE, REASON = "predicted_iter_time_s", "predicted_memory_gb", "predicted_oom", "reason"
ADDED = (TIME, MEMORY, TOO_LARGE, REASON)
_PLAYED_ACTIONS = 2_000_000
"""Of a step; more are priced without playing them."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare it."""
    command = commands.add_parser("predict", help="time and memory of measured rows", allow_abbrev=False)
    command.add_argument("rows", type=Path, metavar="ROWS.csv")
    command.add_argument("--out", type=Path, metavar="PRED.csv", help="default: standard output")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Write the rows with the columns of `ADDED`. Raises DataError."""
    given = read_rows(arguments.rows)
    predicted = [predict(row) for row in given.rows]
    if arguments.out is None:
        write(sys.stdout, given, predicted)
    else:
        try:
            with arguments.out.open("w", newline="", encoding="utf-8") as file:
                write(file, given, predicted)
        except OSError as error:
            raise DataError(f"{arguments.out} cannot be written: {error}") from error
    for line in summary(given, predicted):
        print(line, file=sys.stderr)


def predict(row: Row) -> dict[str, str]:
    """The columns that are added: seconds, GB of 10^9 bytes as the row's `memory_kind` counts them, 1 where some rank
    has too little memory (GB are then what it needs), and why something is missing.
    """
    found = dict.fromkeys(ADDED, "")
    try:
        workload, hardware = row_workload(row), row_hardware(row)
        memory = row_memory(row, workload, hardware)
        needed = memory.nbytes
        if needed == round(hardware.device.memory_gb * 1e9):  # all that nvidia-smi could have shown
            needed = max(stage.total for stage in MemoryModel(workload, hardware).stages)
        found[MEMORY], found[TOO_LARGE] = f"{needed / 1e9:.5g}", str(int(not memory.fits))
        actions = 2 * workload.microbatches * workload.pp * workload.chunks
        time = StepModel(workload, hardware, Constants()).step(quick=actions > _PLAYED_ACTIONS)
        found[TIME] = f"{time.total:.6g}"
    except UserError as error:
        found[REASON] = str(error)
    return found


def write(file: TextIO, given: Rows, predicted: list[dict[str, str]]) -> None:
    """As a table; columns of these names that the rows had already are replaced."""
    writer = csv.DictWriter(file, dict.fromkeys((*given.columns, *ADDED)))
    writer.writeheader()
    writer.writerows({**row, **more} for row, more in zip(given.rows, predicted))


def summary(given: Rows, predicted: list[dict[str, str]]) -> list[str]:
    """How right the predictions are, where it was measured, and what could not be predicted."""
    lines = []
    for what, column, measured in (("time", TIME, seconds), ("memory", MEMORY, gigabytes)):
        pairs = [
            (float(more[column]), there)
            for row, more in zip(given.rows, predicted)
            if more[column] and (there := measured(row)) is not None
        ]
        if pairs:
            lines.append(f"{what}: {errors_text([mine for mine, _ in pairs], [there for _, there in pairs])}")
    missing = sum(bool(more[REASON]) for more in predicted)
    return [*lines, f"{missing} of {len(predicted)} rows could not be predicted"] if missing else lines
