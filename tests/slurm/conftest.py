# SPDX-License-Identifier: Apache-2.0
"""The cluster that the tests of this folder share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real Slurm of two nodes; skips where there can be none."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    # Not tmp_path: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as folder, Cluster(Path(folder)) as cluster:
        yield cluster
