# SPDX-License-Identifier: Apache-2.0
"""Looks at output directories before anything is started: nobody should learn after hours that nothing is saved."""

import os
from pathlib import Path

from megatron_core.errors import ConfigError


def check_save_directory(save: str | None, flag: str = "--save") -> None:
    """Raise ConfigError where files cannot be made under `save`. Every rank calls; nothing is written.

    flag: the one that named the directory.
    """
    if save is None:
        return
    existing = next(path for path in (Path(save).absolute(), *Path(save).absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"{flag} {save}: {existing} is a file, not a directory; name another directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {save}: no permission to write in {existing}; name another directory.")
