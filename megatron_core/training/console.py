# SPDX-License-Identifier: Apache-2.0
"""The package's one logger on the terminal: rank 0 speaks, any other rank only in trouble and with its name."""

import logging
import sys
from typing import TextIO

LOGGER_NAME = "megatron_core"


class RankFormatter(logging.Formatter):
    """Plain text for what rank 0 tells; level and rank in front of everything else."""

    def __init__(self, rank: int) -> None:
        super().__init__("%(message)s")
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        """The record's text with what this rank puts in front of it."""
        text = super().format(record)
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return level + text if self._rank == 0 else f"[rank {self._rank}] {level}{text}"


def set_up_console(rank: int, stream: TextIO | None = None) -> logging.Logger:
    """Send the package's logger to a stream, standard output if None: from INFO on rank 0, WARNING on the others."""
    logger = logging.getLogger(LOGGER_NAME)
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(RankFormatter(rank))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    logger.propagate = False
    return logger
