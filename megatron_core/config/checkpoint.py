# SPDX-License-Identifier: Apache-2.0
"""Where the state of a run goes, and where it comes from."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Output directory, checkpoints written and read."""

    save: str | None = None
    """Directory for checkpoints, metrics, the final weights and exit.json."""
    save_interval: int | None = None
    """Steps between checkpoints. Unset: only where the run stops."""
    save_retain_interval: int | None = None
    """Keep the checkpoints of these steps for ever, however old (a multiple of save_interval)."""
    most_recent_k: int | None = None
    """Keep this many of the newest checkpoints; -1: all. Unset: all, or 1 with save_retain_interval."""
    async_save: bool = True
    """Write checkpoints while training goes on; it waits only for the copy to host memory (Megatron's default: off)."""
    save_optim: bool = True
    """Save the optimizer's state too: fp32 master weights and Adam's moments."""
    stop_on_save_failure: bool = False
    """End the run at a checkpoint that could not be written, instead of saying so and training on."""

    load: str | None = None
    """Continue from the newest good checkpoint in this directory; where there is none, start new and say so."""
    ckpt_step: int | None = None
    """Load the checkpoint of this step and no other."""
    exit_on_missing_checkpoint: bool = False
    """End with an error instead of starting new where load holds no checkpoint."""
    load_optim: bool = True
    """Load the optimizer's state too; without it, masters are rebuilt from the weights and moments start at 0."""
    load_rng: bool = True
    """Keep the seed of the checkpoint, so that dropout and data go on as they were; without it, --seed counts."""
    finetune: bool = False
    """Load only the weights and start from step 0, with a new optimizer and this run's seed."""
    use_checkpoint_args: bool = False
    """Take the model's shape from the checkpoint; it wins over flags and file."""
    override_opt_param_scheduler: bool = False
    """Where the checkpoint's learning-rate and weight-decay schedules differ from this run's, take this run's."""
    use_checkpoint_opt_param_scheduler: bool = False
    """Where they differ, take the checkpoint's. With neither switch a difference is an error."""

    @property
    def keep_last(self) -> int | None:
        """How many of the newest checkpoints stay; None: all."""
        if self.most_recent_k is None:
            return None if self.save_retain_interval is None else 1
        return None if self.most_recent_k == -1 else self.most_recent_k
