#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plan a run before there are devices for it: does it fit, how long does a step take, which layout is fastest.

tools/plan.py search --hardware dgx-a100-80 --nodes 280 --config configs/mt_nlg_530b.yaml [--flags]
    the fastest layouts that fit, the first as flags to paste, and why it is faster than the file's own
tools/plan.py show --hardware dgx-a100-80 --nodes 280 --config configs/mt_nlg_530b.yaml [--flags]
    the layout that file and flags give: time by part, memory by category
tools/plan.py predict ROWS.csv [--out PRED.csv]
    time and memory of measured steps, rows as in shared/published/split_validation.csv
tools/plan.py simulate --hardware NAME --devices N --config FILE [--trace FILE.json] [--picture FILE.png] [--flags]
    the timeline of that layout, for Perfetto and as a picture: bubble, exposed communication, where the time goes
tools/plan.py fit CALIBRATION.csv
    the time model's constants from such rows
tools/plan.py calibrate --out mine.yaml [--threads 1]
    this machine's processors, memory and messages, measured in a minute: hardware for the other subcommands

Flags are those of pretrain_gpt.py. Hardware is a name of configs/hardware/clusters.yaml or a .yaml file of one's own.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
# The folder of a script is on the path too, where tools/inspect.py hides the standard module of that name.

from tools import plan_calibrate, plan_fit, plan_predict, plan_search, plan_show, plan_simulate
from tools.run_command import run_command

COMMANDS = (plan_search, plan_show, plan_simulate, plan_predict, plan_fit, plan_calibrate)


def parse_arguments(words: Sequence[str]) -> argparse.Namespace:
    """A subcommand and its flags; `run` is the function that does it, `run_flags` what is left for the run's config."""
    parser = argparse.ArgumentParser(
        prog="tools/plan.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_command(commands)
    arguments, rest = parser.parse_known_args(list(words))
    if rest and not getattr(arguments, "takes_run_flags", False):
        parser.error(f"unknown: {' '.join(rest)}")
    arguments.run_flags = rest
    return arguments


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 bad input, 130 interrupted."""
    arguments = parse_arguments(words)
    return run_command(lambda: arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
