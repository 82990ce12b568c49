# SPDX-License-Identifier: Apache-2.0
"""Rules about checkpoints: what saving and loading need, and which settings exclude each other.

Settings that public Megatron scripts carry where nothing is saved or loaded are no errors: idle.py tells of them.
"""

from collections.abc import Iterator

from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _saving(config: RunConfig, world: int) -> Iterator[str]:
    checkpoint = config.checkpoint
    if checkpoint.stop_on_save_failure and checkpoint.save is None:
        yield "--stop-on-save-failure needs --save DIR: nothing is saved"
    if checkpoint.most_recent_k == 0:
        yield "--most-recent-k 0 would keep no checkpoint: set 1 or more, or -1 for all"


def _retained(config: RunConfig, world: int) -> Iterator[str]:
    every, retained = config.checkpoint.save_interval, config.checkpoint.save_retain_interval
    if retained is None:
        return
    if every is None:
        yield f"--save-retain-interval {retained} needs a --save-interval that divides it"
    elif retained % every:
        yield (
            f"--save-retain-interval {retained} is not a multiple of --save-interval {every}: "
            f"set {-(-retained // every) * every}"
        )


def _loading(config: RunConfig, world: int) -> Iterator[str]:
    checkpoint = config.checkpoint
    if checkpoint.load is None:
        given = {
            f"--ckpt-step {checkpoint.ckpt_step}": checkpoint.ckpt_step is not None,
            "--exit-on-missing-checkpoint": checkpoint.exit_on_missing_checkpoint,
            "--use-checkpoint-args": checkpoint.use_checkpoint_args,
        }
        asked = [flag for flag, is_set in given.items() if is_set]
        if asked:
            yield f"{' and '.join(asked)}: set --load DIR, the directory of the checkpoint"
    if checkpoint.override_opt_param_scheduler and checkpoint.use_checkpoint_opt_param_scheduler:
        yield (
            "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler exclude each other: "
            "take the run's schedules or the checkpoint's"
        )


RULES = (
    Rule(_saving, "most_recent_k"),
    Rule(_retained, "save_interval save_retain_interval"),
    Rule(_loading, "ckpt_step"),
)
