# SPDX-License-Identifier: Apache-2.0
"""What tests share that run the command line in their own process."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread for what runs in the tests' process, as the ranks of the pool have."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
