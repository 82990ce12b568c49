# SPDX-License-Identifier: Apache-2.0
import logging
from collections.abc import Iterator

import pytest

from megatron_core.training.console import LOGGER_NAME


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """The package's logger as it is before any console was set up, whatever other tests did to it."""
    logger = logging.getLogger(LOGGER_NAME)
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.NOTSET)
    yield
    logger.handlers, logger.level, logger.propagate = before
