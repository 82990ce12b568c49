# SPDX-License-Identifier: Apache-2.0
"""The table of seconds a folder."""

from typing import Literal

import pytest

from tests.folder_seconds import FolderSeconds, folder_of


def report(nodeid: str, when: Literal["setup", "call", "teardown"], duration: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, (nodeid, 1, nodeid), {}, "passed", None, when, duration=duration)


@pytest.mark.parametrize(
    ("nodeid", "folder"),
    [
        ("tests/test_x.py::test_y", "tests"),
        ("tests/data/test_x.py::test_y[a/b]", "tests/data"),
        ("tests/config/rules/test_x.py::TestY::test_z", "tests/config"),
    ],
)
def test_a_folder_is_the_one_below_tests(nodeid, folder):
    assert folder_of(nodeid) == folder


def test_all_phases_count_and_each_test_once():
    plugin = FolderSeconds()
    for when, duration in [("setup", 1.0), ("call", 2.0), ("teardown", 0.5)]:
        plugin.pytest_runtest_logreport(report("tests/data/test_a.py::test_b", when, duration))
    plugin.pytest_runtest_logreport(report("tests/optim/test_a.py::test_b", "call", 7.0))
    assert [" ".join(line.split()) for line in plugin.table(12.0)] == [
        "7.0 s 1 tests tests/optim",
        "3.5 s 1 tests tests/data",
        "1.5 s start and collection",
        "12.0 s 2 tests",
    ]
