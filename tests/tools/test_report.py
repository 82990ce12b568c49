# SPDX-License-Identifier: Apache-2.0
"""The report's figures against a few lines written by hand, and the command as a user calls it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from megatron_core.errors import DataError
from tools.report import History, history_of, main, read_history, report

ROOT = Path(__file__).resolve().parents[2]


def step(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": number,
        "loss": 4.0 - number / 10,
        "consumed_tokens": 1000 * number,
        "step_time_s": 0.5,
        "tokens_per_s": 2000.0,
        "tflops_per_device": 0.25,
        "mfu": None,
        "peak_memory_bytes": 10**9,
        "skipped": False,
    } | changes


def validation(number: int, loss: float, name: str = "validation") -> dict[str, Any]:
    return {"step": number, "validation_loss": loss, "validation_set": name}


def rows(*runs: History) -> dict[str, list[str]]:
    """The report's table: label -> a text for each run. Columns are two spaces or more apart."""
    table, _ = report({f"run{number}": run for number, run in enumerate(runs)}).rsplit("\n\n", 1)
    cells = [[cell.strip() for cell in line.strip().split("  ") if cell.strip()] for line in table.splitlines()[1:]]
    return {label: texts for label, *texts in filter(None, cells)}


def test_speeds_are_medians_with_the_worst_beside_them() -> None:
    run = history_of(
        [
            step(1, step_time_s=4.0, tokens_per_s=250.0, mfu=0.1),
            step(2, mfu=0.4),
            step(3, step_time_s=0.0625, tokens_per_s=16_000.0, mfu=0.5, peak_memory_bytes=2 * 10**9),
        ]
    )
    found = rows(run)
    assert found["steps"] == ["1-3"] and found["tokens"] == ["3.00 ktok"]
    assert found["speed"] == ["2.00 ktok/s"] and found["worst"] == ["250 tok/s"]
    assert found["step time"] == ["500 ms"] and found["longest"] == ["4 s"]
    assert found["a device"] == ["250 GFLOP/s"] and found["mfu"] == ["0.400"] and found["peak memory"] == ["2.00 GB"]


def test_losses_are_shown_where_all_runs_have_come_and_at_their_ends() -> None:
    long = history_of([*(step(number) for number in range(1, 12)), validation(5, 3.5), validation(11, 3.0)])
    short = history_of([step(number, loss=2.0) for number in range(1, 6)] + [validation(5, 1.5, "wiki")])
    found = rows(long, short)
    assert [label for label in found if label.startswith("loss at")] == [f"loss at {number}" for number in range(1, 6)]
    assert found["loss at 3"] == ["3.7000", "2.0000"]
    assert found["last loss"] == ["2.9000 at 11", "-"]
    assert found["validation loss"] == ["3.0000 at 11", "-"] and found["wiki loss"] == ["-", "1.5000 at 5"]


def test_a_step_done_again_counts_as_it_was_last() -> None:
    first = [step(number) for number in (1, 2, 3)]
    run = history_of([*first, step(2, loss=9.0), step(3), step(2, loss=1.5), step(3), step(4)])
    assert (run.went_back, run.done_again) == (2, 4)
    found = rows(run)
    assert found["steps"] == ["1-4"] and found["loss at 2"] == ["1.5000"]
    assert found["went back"] == ["2 x, 4 done again"]
    assert "went back" not in rows(history_of(first))


def test_steps_without_an_update_are_named_and_missing_ones_were_passed_over() -> None:
    run = history_of([step(number, skipped=number > 2) for number in range(1, 13) if number not in (5, 6)])
    found = rows(run)
    assert found["skipped steps"] == ["8: 3, 4, 7, 8, 9, 10, 11, 12"] and found["passed over"] == ["2: 5, 6"]
    many = rows(history_of([step(number, skipped=True) for number in range(1, 10)]))
    assert many["skipped steps"] == ["9: 1, 2, 3, 4, 5, 6, 7, 8, ..."]


def test_communication_is_seconds_and_share_of_the_step_by_axis() -> None:
    plain = history_of([step(number, exposed_comm_s={}) for number in (1, 2)])
    waits = [{"dp": 0.1, "world": 0.01}, {"dp": 0.125}, {"dp": 0.3, "world": 0.02}]
    parallel = history_of([step(number, exposed_comm_s=wait) for number, wait in enumerate(waits, 1)])
    found = rows(plain, parallel)
    assert found["exposed dp"] == ["-", "125 ms, 25%"] and found["exposed world"] == ["-", "10 ms, 2%"]


def test_memory_is_the_most_of_any_step_that_counted() -> None:
    memory = {"parameters": 2_000_000, "activations": 300, "total": 2_000_300}
    run = history_of([step(1), step(2, memory_bytes=memory), step(3, memory_bytes={**memory, "activations": 500})])
    found = rows(run)
    assert [found[category] for category in memory] == [["2.00 MB"], ["500 B"], ["2.00 MB"]]


def test_phases_and_stragglers_where_they_were_logged() -> None:
    windows = [
        {"slowest_rank": rank, "slowest_rank_s": 2.0, "fastest_rank": 0, "fastest_rank_s": 1.5} for rank in (3, 1, 3)
    ]
    run = history_of([step(number, timers={"optimizer": 0.02}, **found) for number, found in enumerate(windows, 1)])
    found = rows(run)
    assert found["optimizer"] == ["20 ms"]
    assert found["slowest rank"] == ["3 in 2 of 3"] and found["behind the fastest"] == ["500 ms a window"]


def test_a_loss_that_is_no_number_is_shown_as_such() -> None:
    assert rows(history_of([step(1, loss="NaN", skipped=True)]))["loss at 1"] == ["nan"]


def left(folder: Path, *lines: dict[str, Any], ending: dict[str, Any] | None = None) -> Path:
    """A --save directory."""
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ending is not None:
        (folder / "exit.json").write_text(json.dumps(ending))
    return folder


def test_the_command_shows_runs_side_by_side_and_how_each_ended(tmp_path: Path) -> None:
    done = left(tmp_path / "a", step(1), ending={"code": 75, "reason": "SIGTERM", "step": 1, "checkpoint_step": 1})
    died = left(tmp_path / "b", step(1))
    tool = str(ROOT / "tools" / "report.py")
    result = subprocess.run([sys.executable, tool, "a", "b"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == ["a", "b"]
    assert result.stdout.splitlines()[-2:] == [
        "a ended after step 1 with code 75: SIGTERM; a later run can start from step 1",
        "b has no exit.json: it is still going, or it died",
    ]
    assert read_history(done).ending is not None and read_history(died).ending is None


def test_what_is_no_run_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert main([str(left(tmp_path / "empty"))]) == 2
    nowhere, empty = capsys.readouterr().err.splitlines()
    assert "the run left no metrics" in nowhere and empty.endswith(
        "empty cannot be reported on: no training step is in it."
    )
    with pytest.raises(DataError, match="cannot be reported on"):
        broken = left(tmp_path / "broken", step(1))
        (broken / "exit.json").write_text("{")
        read_history(broken)
