#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the plans of docs/plans anew: each file's first line is the command that prints the rest of it.

python tools/plan_tables.py [docs/plans/NAME.txt ...]
"""

import contextlib
import io
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import plan  # noqa: E402 - only importable from a checkout after the line above

FOLDER = ROOT / "docs" / "plans"
PROMPT = "$ tools/plan.py "


def rendered(text: str) -> str:
    """A table's text anew, from its first line."""
    command, _, _ = text.partition("\n")
    assert command.startswith(PROMPT), f"{command!r} does not start with {PROMPT!r}"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = plan.main(shlex.split(command.removeprefix(PROMPT)))
    assert code == 0, f"{command} ends with code {code}"
    return f"{command}\n\n{printed.getvalue()}"


def main(words: Sequence[str]) -> int:
    """Exit code 0."""
    for path in map(Path, words) if words else sorted(FOLDER.glob("*.txt")):
        path.write_text(rendered(path.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
