# SPDX-License-Identifier: Apache-2.0
"""<save>/exit.json: how a run ended, for launch scripts. torchrun hides exit codes; this file keeps them.

One JSON object in one line: code, reason, step and, where one is known, checkpoint_step, the newest step that a later
run can start from. No file: the run is still going, or it died.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from megatron_core.checkpoint.files import sync_directory
from megatron_core.errors import CheckpointError

EXIT_FILE = "exit.json"
LOGGER = logging.getLogger("megatron_core")


def remove_exit_file(save: Path) -> None:
    """Forget an earlier run's ending, which would speak for this one, should this one die."""
    (save / EXIT_FILE).unlink(missing_ok=True)


def write_exit_file(save: Path, *, code: int, reason: str, step: int, checkpoint_step: int | None = None) -> None:
    """Write the file whole or not at all. A disk that takes nothing more is reported and changes nothing else.

    code: as in the contract on exit codes, also under torchrun, whose ranks leave with 0 instead of 75.
    """
    record: dict[str, int | str] = {"code": code, "reason": reason, "step": step}
    if checkpoint_step is not None:
        record["checkpoint_step"] = checkpoint_step
    unfinished = save / f"{EXIT_FILE}.tmp"
    try:
        save.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(save / EXIT_FILE)
        sync_directory(save)
    except (OSError, CheckpointError) as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        LOGGER.error("cannot write %s: %s. It would have said: %s", save / EXIT_FILE, error, json.dumps(record))


class LastWord:
    """What a run leaves in exit.json, on the one rank that says it; whoever ends the run has it said."""

    def __init__(self, save: str | None, rank: int) -> None:
        self._folder = Path(save) if save is not None and rank == 0 else None
        self.where: Callable[[], tuple[int, int | None]] = lambda: (0, None)
        """The last step, and the newest step that a later run can start from."""

    def forget_earlier(self) -> None:
        """Remove an earlier run's."""
        if self._folder is not None:
            remove_exit_file(self._folder)

    def say(self, code: int, reason: str) -> None:
        """Write the file; a later word replaces an earlier one."""
        if self._folder is not None:
            step, checkpoint_step = self.where()
            write_exit_file(self._folder, code=code, reason=reason, step=step, checkpoint_step=checkpoint_step)
