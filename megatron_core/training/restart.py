# SPDX-License-Identifier: Apache-2.0
"""What changes when a launcher starts the same command again: the run goes on from what it has saved itself."""

from dataclasses import replace
from pathlib import Path

from megatron_core.checkpoint.directory import finished_steps
from megatron_core.config.run import RunConfig


def restarted(config: RunConfig, restarts: int) -> RunConfig:
    """The config of start number `restarts` (0: the first) of a job.

    A command that loads nothing, or an older run's weights, would throw away what the job has done since: torchrun's
    --max-restarts and Slurm's requeue repeat it word for word.
    """
    checkpoint = config.checkpoint
    if not restarts or checkpoint.save is None:
        return config
    if not finished_steps(Path(checkpoint.save)):
        return config
    return replace(
        config,
        checkpoint=replace(
            checkpoint, load=checkpoint.save, ckpt_step=None, finetune=False, load_optim=True, load_rng=True
        ),
    )
