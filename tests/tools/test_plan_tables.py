# SPDX-License-Identifier: Apache-2.0
"""The plans of docs/plans are what their commands print."""

from pathlib import Path

import pytest

from tools.plan_tables import FOLDER, main, rendered

TABLES = sorted(FOLDER.glob("*.txt"))
SLOW = ("_search", "_nodes")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem.endswith(SLOW) else []) for path in TABLES],
    ids=lambda path: path.stem,
)
def test_a_plan_is_what_its_command_prints(path: Path) -> None:
    assert rendered(path.read_text()) == path.read_text(), "run tools/plan_tables.py"


def test_every_big_configuration_has_a_plan() -> None:
    configs = {path.stem for path in Path("configs").glob("*.yaml")} - {"demo_cpu"}
    assert configs <= {path.stem for path in TABLES}


def test_a_file_is_written_anew_from_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    command = next(path for path in TABLES if path.stem == "gpt2_125m").read_text().partition("\n")[0]
    path.write_text(f"{command}\nold\n")
    assert main([str(path)]) == 0
    assert path.read_text().startswith(f"{command}\n\n") and "old" not in path.read_text()
