# SPDX-License-Identifier: Apache-2.0
"""Whether saving to a directory would leave two runs in it: a later start takes the newest step, whoever saved it."""

from pathlib import Path

from megatron_core.checkpoint.directory import finished_steps
from megatron_core.config.checkpoint import CheckpointConfig
from megatron_core.errors import ConfigError

_NAMED = 5


def check_save_conflict(config: CheckpointConfig, goes_on_from: int | None) -> None:
    """Raise ConfigError where --save holds checkpoints that this run does not come from. One rank calls.

    goes_on_from: the step of the checkpoint that the run goes on from; None where it starts from step 0.
    """
    if config.save is None:
        return
    present = finished_steps(Path(config.save))
    if not present:
        return
    held = f"--save {config.save} holds checkpoints of step {', '.join(map(str, present[-_NAMED:]))}"
    if goes_on_from is None and is_own(config):
        raise ConfigError(
            f"{held}, and --finetune starts from step 0, so that a later start would take those: name another --save, "
            "or drop --finetune to go on from them"
        )
    if goes_on_from is None or not is_own(config):
        raise ConfigError(
            f"{held}, and this run does not start from them, so that a later start would take the wrong one: "
            f"--load {config.save} goes on from them, or name another --save"
        )
    if config.ckpt_step is not None and present[-1] > goes_on_from:
        raise ConfigError(
            f"{held}, but --ckpt-step {goes_on_from} goes back: a later start would take step {present[-1]}, not what "
            f"comes now. Name another --save, or remove the steps after {goes_on_from}"
        )


def is_own(config: CheckpointConfig) -> bool:
    """Whether --load and --save name the same directory."""
    if config.save is None or config.load is None:
        return False
    return Path(config.save).resolve() == Path(config.load).resolve()
