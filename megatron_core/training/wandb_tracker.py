# SPDX-License-Identifier: Apache-2.0
"""Weights & Biases (`--wandb-project`), which must never block or end a training run.

Everything of it happens in a daemon thread behind a bounded queue: logging is a `put_nowait`. Without a key or a
network the run is written offline, for `wandb sync` later. Whatever fails becomes one warning and ends the thread.
"""

import importlib
import inspect
import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatron_core.config.logging import LoggingConfig
from megatron_core.errors import ConfigError
from megatron_core.training.console import LOGGER_NAME

LOGGER = logging.getLogger(LOGGER_NAME)

INIT_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 60.0
MOST_WAITING_RECORDS = 10_000


class WandbTracker:
    """Hands scalars to a thread that owns the wandb run."""

    def __init__(self, config: LoggingConfig, save: str | None, run_config: Mapping[str, Any]) -> None:
        """Raises ConfigError when wandb is not installed, or when there is no directory for its files."""
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise ConfigError(
                f"--wandb-project needs the package wandb, which cannot be imported ({error}): pip install wandb, or "
                "drop the flag (metrics.jsonl has the same numbers)."
            ) from error
        if not config.wandb_save_dir and save is None:
            raise ConfigError("--wandb-project writes to <save>/wandb: set --save or --wandb-save-dir.")
        directory = Path(config.wandb_save_dir or str(save))  # wandb makes its folder `wandb` in there
        directory.mkdir(parents=True, exist_ok=True)
        options = {
            "project": config.wandb_project,
            "entity": config.wandb_entity or None,
            "name": config.wandb_exp_name or None,
            "dir": str(directory),
            "config": dict(run_config),
        }
        self._records: queue.Queue[tuple[dict[str, float], int] | None] = queue.Queue(MOST_WAITING_RECORDS)
        self._thread = threading.Thread(target=_serve, args=(wandb, options, self._records), name="wandb", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Queue scalars of a step; dropped when the thread has ended or is far behind."""
        self._put((dict(values), step))

    def close(self) -> None:
        """Let the thread finish, for a minute at most."""
        self._put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            LOGGER.warning("wandb did not finish within %.0f s and is left behind", CLOSE_TIMEOUT_S)

    def _put(self, record: tuple[dict[str, float], int] | None) -> None:
        if self._thread.is_alive() and not self._records.full():
            self._records.put_nowait(record)


def _serve(wandb: Any, options: dict[str, Any], records: "queue.Queue[tuple[dict[str, float], int] | None]") -> None:
    """The thread: open a run, pass records on until None comes."""
    try:
        run = _open_run(wandb, options)
        while (record := records.get()) is not None:
            values, step = record
            run.log(values, step=step)
        run.finish()
    # As broad as it gets, on purpose: no failure of a reporting service may reach the training run.
    except Exception as error:
        LOGGER.warning(
            "wandb stopped (%s: %s); training goes on, metrics.jsonl has the numbers", type(error).__name__, error
        )


def _open_run(wandb: Any, options: dict[str, Any]) -> Any:
    """A run, online where there are a key and a network, else offline."""
    try:
        if _has_key(wandb):
            return wandb.init(**options, settings=wandb.Settings(init_timeout=INIT_TIMEOUT_S))
        LOGGER.info("wandb has no key and goes offline; `wandb sync` uploads later")
    except wandb.Error as error:
        LOGGER.warning("wandb goes offline: %s", str(error).splitlines()[0])
    return wandb.init(**options, mode="offline")


def _has_key(wandb: Any) -> bool:
    """Whether wandb knows a key. Never asks at the terminal, which is what its own `init` would do."""
    if "prompt" in inspect.signature(wandb.login).parameters:
        return bool(wandb.login(prompt=False))
    return wandb.api.api_key is not None
