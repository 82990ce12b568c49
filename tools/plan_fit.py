# SPDX-License-Identifier: Apache-2.0
"""`tools/plan.py fit`: the time model's constants from measured steps."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from megatron_core.errors import ConfigError, DataError
from megatron_core.planner.constants import Constants
from megatron_core.planner.fit import Measured, fit
from megatron_core.planner.rows import row_hardware, row_workload
from megatron_core.planner.step_time import StepModel
from tools.plan_rows import errors_text, read_rows, seconds


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare it."""
    command = commands.add_parser("fit", help="constants from measured rows", allow_abbrev=False)
    command.add_argument("rows", type=Path, metavar="CALIBRATION.csv")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print the constants. Raises DataError where no row can be used."""
    measured: list[Measured] = []
    for row in read_rows(arguments.rows).rows:
        if (time := seconds(row)) is None:
            continue
        try:
            measured.append((row_workload(row), row_hardware(row), time))
        except ConfigError as error:
            print(f"without {row.get('id', 'a row')}: {error}", file=sys.stderr)
    if not measured:
        raise DataError(f"{arguments.rows} has no row with a time that can be predicted")
    found = fit(measured, Constants(), lambda line: print(line, file=sys.stderr))
    for field in fields(found):
        print(f"{field.name}: {getattr(found, field.name):.4g}")
    predicted = [StepModel(workload, hardware, found).step().total for workload, hardware, _ in measured]
    print(errors_text(predicted, [time for _, _, time in measured]))
