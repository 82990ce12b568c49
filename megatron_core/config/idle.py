# SPDX-License-Identifier: Apache-2.0
"""Settings that have no effect in this run because what they belong to was not asked for.

A knob that would be ignored is an error elsewhere. These stand in many public Megatron scripts that save or load
nothing, or only sometimes, and mean no harm there: they are said once instead.
"""

from collections.abc import Iterator

from megatron_core.config.checkpoint import CheckpointConfig


def idle_settings(checkpoint: CheckpointConfig) -> Iterator[str]:
    """One line for each reason: the flags that it leaves without effect."""
    saving = {
        "--save-interval": checkpoint.save_interval is not None,
        "--save-retain-interval": checkpoint.save_retain_interval is not None,
        "--most-recent-k": checkpoint.most_recent_k not in (None, -1),  # -1: as a printed config has it
        "--no-save-optim": not checkpoint.save_optim,
    }
    loading = {
        "--finetune": checkpoint.finetune,
        "--no-load-optim": not checkpoint.load_optim,
        "--no-load-rng": not checkpoint.load_rng,
        "--override-opt-param-scheduler": checkpoint.override_opt_param_scheduler,
        "--use-checkpoint-opt-param-scheduler": checkpoint.use_checkpoint_opt_param_scheduler,
    }
    if checkpoint.save is None:
        yield from _line("nothing is saved without --save DIR", saving)
    if checkpoint.load is None:
        yield from _line("nothing is loaded without --load DIR", loading)


def _line(reason: str, given: dict[str, bool]) -> Iterator[str]:
    flags = [flag for flag, is_set in given.items() if is_set]
    if flags:
        yield f"without effect, since {reason}: {', '.join(flags)}"
