# SPDX-License-Identifier: Apache-2.0
"""Where the state of a run goes."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Output directory."""

    save: str | None = None
    """Directory for metrics, the final weights and exit.json."""
