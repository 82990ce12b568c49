# SPDX-License-Identifier: Apache-2.0
"""The test script runs every check whatever fails, and fails if any did."""

import shutil

import pytest

from tests.scripts.checkout import Checkout

PROGRAMS = ("python", "ruff", "mypy", "lint-imports")


@pytest.fixture
def checkout(tmp_path):
    made = Checkout(tmp_path)
    for name in PROGRAMS:
        made.stand_in(name)
    made.run("scripts/setup_venv.sh", "test", "eval-test")
    made.calls()
    return made


def names(calls):
    return [" ".join(call.split()[: 3 if call.startswith("python") else 1]) for call in calls]


@pytest.mark.parametrize("script", ["scripts/test.sh", ".ci/run"])
def test_all_checks_run(checkout, script):
    result = checkout.run(script)
    assert result.returncode == 0, result.stderr
    assert names(checkout.calls()) == ["ruff", "ruff", "mypy", "lint-imports", "python -m pytest"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_that_fails_fails_the_run_and_stops_nothing(checkout, program):
    checkout.stand_in(program, code=1)
    result = checkout.run("scripts/test.sh")
    assert result.returncode == 1
    assert len(checkout.calls()) == 5
    assert result.stderr.splitlines()[-1].startswith("failed: ")


def test_slow_proofs_run_when_asked_for_and_other_words_go_to_pytest(checkout, tmp_path):
    checkout.run("scripts/test.sh", "tests/optim", "-k", "clip")
    assert checkout.calls()[-1] == "python -m pytest -n 2 --dist loadfile -p tests.folder_seconds tests/optim -k clip"
    checkout.run("scripts/test.sh", "--all", "-x", PATH=machine(tmp_path, slurmctld="true"))
    assert checkout.calls()[-1] == "python -m pytest -n 2 --dist loadfile -p tests.folder_seconds -m  -x"


def test_what_only_slow_proofs_need_is_installed_for_them(checkout, tmp_path):
    shutil.rmtree(checkout.folder / ".venv" / "installed")
    checkout.run("scripts/test.sh")
    assert checkout.calls()[0].endswith("--editable .[test]")
    checkout.run("scripts/test.sh", "--all", PATH=machine(tmp_path, slurmctld="true", mkdir="/bin/mkdir $*"))
    assert checkout.calls()[0].endswith("--editable .[test,eval-test]")


def machine(folder, **programs):
    """A PATH that holds what the scripts need, and these programs beside it: shell commands by name."""
    path = folder / "machine"
    path.mkdir()
    for name in ("bash", "sh", "cat", "dirname"):
        (path / name).symlink_to(shutil.which(name))
    for name, command in programs.items():
        (path / name).write_text(f"#!/bin/sh\n{command}\n")
        (path / name).chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("user", "code", "asked", "said"),
    [
        (0, 0, ["update -qq", "install -qq --no-install-recommends slurm-wlm munge"], "installed slurm-wlm and munge"),
        (0, 100, ["update -qq"], "cannot install Slurm here"),
        (1000, 0, [], "cannot install Slurm here"),
    ],
)
def test_slurm_is_installed_where_it_can_be(user, code, asked, said, checkout, tmp_path):
    log = tmp_path / "asked"
    path = machine(tmp_path, **{"apt-get": f'echo "$*" >>"{log}"; exit {code}', "id": f"echo {user}"})
    result = checkout.run("scripts/test.sh", "--all", PATH=path)
    assert result.returncode == 0, result.stderr
    assert (log.read_text().splitlines() if log.exists() else []) == asked
    assert said in result.stdout + result.stderr
    assert len(checkout.calls()) == 5
