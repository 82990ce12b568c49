# SPDX-License-Identifier: Apache-2.0
"""The set-up script installs once a state of its inputs, and says what is wrong with the Python it finds."""

import pytest

from tests.scripts.checkout import Checkout

SCRIPT = "scripts/setup_venv.sh"


@pytest.fixture
def checkout(tmp_path):
    made = Checkout(tmp_path)
    made.stand_in("python")
    return made


def test_it_installs_with_the_constraints_and_the_extras(checkout):
    result = checkout.run(SCRIPT, "test", "plots")
    assert result.returncode == 0, result.stderr
    (call,) = checkout.calls()
    assert call.startswith("python -m pip install")
    assert "--constraint constraints.txt --editable .[test,plots]" in call


def test_a_second_call_and_a_call_for_less_do_nothing(checkout):
    checkout.run(SCRIPT, "test")
    checkout.calls()
    assert checkout.run(SCRIPT, "test").stdout == ""
    assert checkout.run(SCRIPT).stdout == ""
    assert checkout.calls() == []


def test_a_call_for_more_installs(checkout):
    checkout.run(SCRIPT)
    (call,) = checkout.calls()
    assert call.endswith("--editable .")
    checkout.run(SCRIPT, "test")
    assert len(checkout.calls()) == 1


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_input_installs_again(checkout, name):
    checkout.run(SCRIPT)
    with (checkout.folder / name).open("a") as file:
        file.write("# changed\n")
    checkout.calls()
    checkout.run(SCRIPT)
    assert len(checkout.calls()) == 1


def test_an_install_that_failed_is_not_taken_for_done(checkout):
    checkout.stand_in("python", code=1)
    assert checkout.run(SCRIPT).returncode == 1
    checkout.stand_in("python")
    checkout.calls()
    assert checkout.run(SCRIPT).returncode == 0
    assert len(checkout.calls()) == 1


def test_a_missing_python_is_said(tmp_path):
    result = Checkout(tmp_path).run(SCRIPT, PYTHON="python9")
    assert result.returncode == 2
    assert "there is no python9" in result.stderr and "3.10" in result.stderr


def test_an_old_python_is_said(tmp_path):
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.8.1\nexit 1\n')
    old.chmod(0o755)
    result = Checkout(tmp_path).run(SCRIPT, PYTHON=str(old))
    assert result.returncode == 2
    assert "is Python 3.8.1, but 3.10 or newer is needed" in result.stderr
