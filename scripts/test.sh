#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sets up .venv, then runs every check and test:
#     scripts/test.sh [--all] [PYTEST ARGUMENT ...]
# --all: the slow proofs too, with lm_eval to compare with and a real Slurm for tests/slurm
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Debian and Ubuntu keep it in two packages; elsewhere, or without root or network, its tests skip and say so.
install_slurm() {
    if command -v slurmctld >/dev/null; then
        return
    fi
    if (($(id -u) == 0)) && command -v apt-get >/dev/null && apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends slurm-wlm munge >/dev/null; then
        echo "setup: installed slurm-wlm and munge"
    else
        echo "setup: cannot install Slurm here: the tests that need one are skipped" >&2
    fi
}

selection=()
if [[ ${1:-} == --all ]]; then
    selection=(-m "")
    shift
    scripts/setup_venv.sh test eval-test
    install_slurm
else
    scripts/setup_venv.sh test
fi

failed=()
check() {
    local name=$1 started=$SECONDS
    shift
    if "$@"; then
        echo "check: $name passed after $((SECONDS - started)) s"
    else
        echo "check: $name FAILED after $((SECONDS - started)) s"
        failed+=("$name")
    fi
}

check "ruff" .venv/bin/ruff check --quiet
check "ruff format" .venv/bin/ruff format --check --quiet
check "mypy" .venv/bin/mypy --no-error-summary
check "lint-imports" .venv/bin/lint-imports --no-logo

# Two test files at a time: much of the time of tests on many ranks is waiting.
# Each in one thread, as its ranks are: threads that wait for a core which the other file has cost several times the work.
# pytest's own closing line stays the last one of a run that passed. The + is for bash 3, where an empty array is unset.
OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist loadfile -p tests.folder_seconds ${selection[@]+"${selection[@]}"} "$@" || failed+=(pytest)

if ((${#failed[@]})); then
    echo "failed: ${failed[*]}" >&2
    exit 1
fi
