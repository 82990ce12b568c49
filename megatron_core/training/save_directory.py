# SPDX-License-Identifier: Apache-2.0
"""Looks at --save before anything is started: nobody should learn after hours that weights cannot be saved."""

import os
from pathlib import Path

from megatron_core.errors import ConfigError


def check_save_directory(save: str | None) -> None:
    """Raise ConfigError where files cannot be made under `save`. Every rank calls; nothing is written."""
    if save is None:
        return
    existing = next(path for path in (Path(save).absolute(), *Path(save).absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"--save {save}: {existing} is a file, not a directory; name another directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"--save {save}: no permission to write in {existing}; name another directory.")
