# SPDX-License-Identifier: Apache-2.0
"""A checkout that holds only the scripts, with a .venv whose programs write down how they were called."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Checkout:
    """Runs scripts in a folder of their own; `calls` are the lines that the stand-ins wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        shutil.copytree(ROOT / ".ci", folder / ".ci")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)

    def stand_in(self, name: str, code: int = 0) -> None:
        """A program of .venv that ends with `code`. Python answers for itself unless it is to run a module."""
        path = self.folder / ".venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        real = f'[ "$1" = -m ] || exec {sys.executable} "$@"\n' if name == "python" else ""
        path.write_text(f'#!/bin/sh\n{real}echo "{name} $*" >>"{self.folder}/calls"\nexit {code}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """What was called since the last time this was asked."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script from elsewhere, as users do."""
        command = ["bash", str(self.folder / words[0]), *words[1:]]
        environment = {**os.environ, **variables}
        return subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment, check=False)
