#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs did, from the metrics.jsonl and exit.json in their --save directories; several runs stand side by side.

    tools/report.py runs/gpt [runs/other ...]

A step that was done twice counts as it was the last time. Speeds and times are medians over all steps, since the first
step of a process and those that count memory are slower. "exposed" is time blocked in collectives, which no computation
has hidden, of the rank that was blocked longest; on pp and world that is also waiting for others.
"""

import argparse
import itertools
import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from megatron_core.errors import DataError, UserError
from megatron_core.training.exit_file import EXIT_FILE
from megatron_core.training.metrics import METRICS_FILE, read_metrics
from megatron_core.training.progress import quantity
from tools.text_table import text_table

Record = Mapping[str, Any]
Rows = dict[str, str]
"""Label -> text, in the order in which they are shown."""

SHOWN_STEPS = 8
"""So many of a list of steps are named."""


@dataclass(frozen=True)
class History:
    """One run."""

    steps: Mapping[int, Record]
    """Training lines by number, in order; of a step done twice, the last."""
    done_again: int
    """How many lines a later one has replaced."""
    went_back: int
    """How often the run went on from an earlier step than it had come to: restarts and roll-backs."""
    validations: Mapping[str, Record]
    """The last one of each set."""
    ending: Record | None
    """What exit.json says; None: the run is still going, or it died."""

    def of(self, name: str) -> list[float]:
        """A number of all steps that know it."""
        return [float(record[name]) for record in self.steps.values() if record.get(name) is not None]

    def within(self, name: str) -> dict[str, list[float]]:
        """The numbers of a mapping by key, of all steps that have it; 0 where a step lacks a key of others."""
        found = [record[name] for record in self.steps.values() if record.get(name)]
        keys = dict.fromkeys(key for mapping in found for key in mapping)
        return {key: [float(mapping.get(key, 0)) for mapping in found] for key in keys}


def history_of(records: Sequence[Record], ending: Record | None = None) -> History:
    """A run from its lines. Raises DataError where there is no training step among them."""
    lines = [record for record in records if "loss" in record]
    if not lines:
        raise DataError("no training step is in it")
    steps = {record["step"]: record for record in lines}
    return History(
        steps=dict(sorted(steps.items())),
        done_again=len(lines) - len(steps),
        went_back=sum(later["step"] <= earlier["step"] for earlier, later in itertools.pairwise(lines)),
        validations={record["validation_set"]: record for record in records if "validation_loss" in record},
        ending=ending,
    )


def read_history(run: Path) -> History:
    """The run that left its metrics in this directory. Raises DataError where it has none."""
    metrics, ending = run / METRICS_FILE, run / EXIT_FILE
    if not metrics.is_file():
        raise DataError(f"{metrics} is not there: the run left no metrics, or has another --save directory.")
    try:
        return history_of(read_metrics(metrics), json.loads(ending.read_text()) if ending.is_file() else None)
    except (DataError, json.JSONDecodeError) as error:
        raise DataError(f"{run} cannot be reported on: {error}.") from error


def _progress(run: History) -> Rows:
    first, last = min(run.steps), max(run.steps)
    passed_over = sorted(set(range(first, last + 1)) - run.steps.keys())
    skipped = [step for step, record in run.steps.items() if record["skipped"]]
    rows = {
        "steps": f"{first}-{last}",
        "tokens": quantity(run.steps[last]["consumed_tokens"], "tok"),
        "skipped steps": _listed(skipped),
        "passed over": _listed(passed_over),
        "went back": f"{run.went_back} x, {run.done_again} done again" if run.went_back else "",
    }
    return {label: text for label, text in rows.items() if text}


def _losses(run: History, at: Sequence[int]) -> Rows:
    last = max(run.steps)
    rows = {f"loss at {step}": f"{float(run.steps[step]['loss']):.4f}" for step in at if step in run.steps}
    if last not in at:
        rows["last loss"] = f"{float(run.steps[last]['loss']):.4f} at {last}"
    for name, record in run.validations.items():
        rows[f"{name} loss"] = f"{float(record['validation_loss']):.4f} at {record['step']}"
    return rows


def _speed(run: History) -> Rows:
    seconds, tokens, mfu = run.of("step_time_s"), run.of("tokens_per_s"), run.of("mfu")
    rows = {
        "speed": quantity(statistics.median(tokens), "tok/s"),
        "  worst": quantity(min(tokens), "tok/s"),
        "  a device": quantity(1e12 * statistics.median(run.of("tflops_per_device")), "FLOP/s"),
        "mfu": f"{statistics.median(mfu):.3f}" if mfu else "",
        "step time": _seconds(statistics.median(seconds)),
        "  longest": _seconds(max(seconds)),
    }
    return {label: text for label, text in rows.items() if text}


def _communication(run: History) -> Rows:
    step = statistics.median(run.of("step_time_s"))
    medians = {axis: statistics.median(seconds) for axis, seconds in run.within("exposed_comm_s").items()}
    return {f"exposed {axis}": f"{_seconds(seconds)}, {seconds / step:.0%}" for axis, seconds in medians.items()}


def _phases(run: History) -> Rows:
    return {name: _seconds(statistics.median(seconds)) for name, seconds in run.within("timers").items()}


def _stragglers(run: History) -> Rows:
    windows = [record for record in run.steps.values() if "slowest_rank" in record]
    if not windows:
        return {}
    ((rank, times),) = Counter(record["slowest_rank"] for record in windows).most_common(1)
    behind = statistics.median(record["slowest_rank_s"] - record["fastest_rank_s"] for record in windows)
    return {
        "slowest rank": f"{rank} in {times} of {len(windows)}",
        "  behind the fastest": f"{_seconds(behind)} a window",
    }


def _memory(run: History) -> Rows:
    rows = {"peak memory": quantity(max(run.of("peak_memory_bytes")), "B")}
    counted = run.within("memory_bytes")
    return rows | {f"  {category}": quantity(max(nbytes), "B") for category, nbytes in counted.items()}


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _listed(steps: Sequence[int]) -> str:
    if not steps:
        return ""
    named = ", ".join(map(str, steps[:SHOWN_STEPS]))
    return f"{len(steps)}: {named}{', ...' if len(steps) > SHOWN_STEPS else ''}"


def _common_steps(runs: Sequence[History]) -> list[int]:
    """The first step, and quarters of the way that all runs have come."""
    first, last = max(min(run.steps) for run in runs), min(max(run.steps) for run in runs)
    if first > last:
        return []
    return sorted({first + (last - first) * quarter // 4 for quarter in range(5)})


def report(runs: Mapping[str, History]) -> str:
    """One column a run, by its name."""
    at = _common_steps(list(runs.values()))
    sections: Sequence[Callable[[History], Rows]] = (
        _progress,
        lambda run: _losses(run, at),
        _speed,
        _communication,
        _phases,
        _stragglers,
        _memory,
    )
    rows: list[tuple[str, ...]] = []
    for section in sections:
        columns = [section(run) for run in runs.values()]
        labels = dict.fromkeys(label for column in columns for label in column)
        if labels:
            rows.append(("",) * (1 + len(runs)))
        rows += [(label, *(column.get(label, "-") for column in columns)) for label in labels]
    lines = text_table(("", *runs), rows, right=list(runs))
    return "\n".join([*lines, "", *(f"{name} {_ended(run.ending)}" for name, run in runs.items())])


def _ended(ending: Record | None) -> str:
    if ending is None:
        return "has no exit.json: it is still going, or it died"
    saved = f"; a later run can start from step {ending['checkpoint_step']}" if "checkpoint_step" in ending else ""
    return f"ended after step {ending['step']} with code {ending['code']}: {ending['reason']}{saved}"


def main(words: Sequence[str]) -> int:
    """Exit code: 0 done, 2 where a run has left nothing to report on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's --save directory")
    try:
        print(report({str(run): read_history(run) for run in parser.parse_args(words).runs}))
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
