# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the pool of live ranks, ended with the session."""

from collections.abc import Iterator

import pytest

from tests.rank_pool import RankPool, session_pool


@pytest.fixture(scope="session")
def rank_pool() -> RankPool:
    """The session's pool of live gloo ranks."""
    return session_pool()


@pytest.fixture(scope="session", autouse=True)
def _end_rank_pool() -> Iterator[None]:
    yield
    session_pool().close()
