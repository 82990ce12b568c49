#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes .venv in this checkout and installs the package into it, at the versions of constraints.txt:
#     scripts/setup_venv.sh [EXTRA ...]        extras of pyproject.toml, such as test
# Done once for a Python, a pyproject.toml and a constraints.txt; after that it touches neither disk nor network.
# PYTHON names another interpreter than python3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! .venv/bin/python -c '' 2>/dev/null; then
    python=${PYTHON:-python3}
    if ! command -v "$python" >/dev/null; then
        echo "setup: there is no $python: install Python 3.10 or newer, or set PYTHON to one." >&2
        exit 2
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "setup: $python is $("$python" -V 2>&1), but 3.10 or newer is needed: set PYTHON to one." >&2
        exit 2
    fi
    echo "setup: making .venv with $("$python" -V)"
    if ! "$python" -m venv --clear .venv; then
        echo "setup: $python cannot make virtual environments (Debian, Ubuntu: apt install python3-venv)." >&2
        exit 2
    fi
fi

# A stamp a wanted extra. The folder counts because the editable install and the scripts in .venv hold its path.
key=$({ pwd; .venv/bin/python -VV; cat pyproject.toml constraints.txt; } | .venv/bin/python -c '
import hashlib, sys
print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])')
missing=0
for extra in runtime "$@"; do
    [[ -e .venv/installed/$key.$extra ]] || missing=1
done
if ((missing)); then
    extras=$(IFS=,; echo "$*")
    echo "setup: installing ${extras:-what training needs} into .venv (the first time this takes minutes)"
    .venv/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt \
        --editable ".${extras:+[$extras]}"
    mkdir -p .venv/installed
    for extra in runtime "$@"; do
        : >".venv/installed/$key.$extra"
    done
fi
