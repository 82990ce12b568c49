# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin (`-p tests.folder_seconds`): a table of seconds and tests a folder at the end of the run.

One process runs all tests, so that all of them share one pool of ranks; this tells what each folder costs all the same.
"""

import time
from collections import defaultdict
from pathlib import PurePosixPath

import pytest

OTHER = "start and collection"


def folder_of(nodeid: str) -> str:
    """`tests/data/test_x.py::test_y` -> `tests/data`: the folder right below the first one."""
    parents = PurePosixPath(nodeid.split("::")[0]).parent.parts
    return "/".join(parents[:2])


class FolderSeconds:
    """Adds up what pytest reports of each test's set-up, call and tear-down."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        folder = folder_of(report.nodeid)
        self._seconds[folder] += report.duration
        self._tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, the slowest folder first; what no test took is the last row."""
        terminalreporter.section("seconds a folder")
        for line in self.table(time.monotonic() - self._started):
            terminalreporter.write_line(line)

    def table(self, elapsed: float) -> list[str]:
        """Rows of seconds, tests and folder. `elapsed`: seconds of the whole run."""
        rows = sorted(((seconds, self._tests[name], name) for name, seconds in self._seconds.items()), reverse=True)
        lines = [f"{seconds:8.1f} s {tests:6} tests  {name}" for seconds, tests, name in rows]
        other = max(elapsed - sum(self._seconds.values()), 0.0)
        return [*lines, f"{other:8.1f} s {'':12}  {OTHER}", f"{elapsed:8.1f} s {sum(self._tests.values()):6} tests"]


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest when it loads the plugin."""
    config.pluginmanager.register(FolderSeconds(), "folder_seconds")
