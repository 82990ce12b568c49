# SPDX-License-Identifier: Apache-2.0
"""Published measurements, which lie beside the repository: where they are not, tests of them are skipped."""

import csv
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / "shared" / "published"


def published(name: str) -> list[dict[str, str]]:
    """The rows of one table."""
    path = DIRECTORY / name
    if not path.exists():
        pytest.skip(f"the published tables are not on this machine: {path}")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
