# SPDX-License-Identifier: Apache-2.0
"""Tests mirror the source: megatron_core/a/b.py has tests/a/test_b.py, and tools/x.py has tests/tools/test_x.py."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"megatron_core": ROOT / "tests", "tools": ROOT / "tests" / "tools"}
OF_NO_ONE_FILE = {"e2e", "scripts", "slurm", "tools"}
"""Folders of tests that mirror another tree, or span many files."""


def holds_code(path: Path) -> bool:
    """Whether a file has a function that does something; tables, dataclasses and protocols alone need no test."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    return any(not all(isinstance(statement, ast.Expr) for statement in function.body) for function in functions)


def test_every_file_with_code_has_its_test():
    missing = [
        path.relative_to(ROOT).as_posix()
        for folder, tests in SOURCES.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        if holds_code(path) and not (tests / path.relative_to(ROOT / folder).parent / f"test_{path.name}").exists()
    ]
    assert missing == []


def test_every_test_below_a_folder_has_its_file():
    orphans = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").glob("*/**/test_*.py"))
        if path.relative_to(ROOT / "tests").parts[0] not in OF_NO_ONE_FILE
        and not (
            ROOT / "megatron_core" / path.relative_to(ROOT / "tests").parent / path.name.removeprefix("test_")
        ).exists()
    ]
    assert orphans == []


def test_data_alone_needs_no_test(tmp_path):
    path = tmp_path / "x.py"
    path.write_text('class A:\n    def stub(self):\n        """Says."""\n        ...\n')
    assert not holds_code(path)
    path.write_text("def f():\n    return 1\n")
    assert holds_code(path)
