# SPDX-License-Identifier: Apache-2.0
"""Rules about steps that go wrong: what a policy needs in order to be followed."""

from collections.abc import Iterator

from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig
from megatron_core.config.step_ranges import parse_step_ranges
from megatron_core.config.training import TrainingConfig


def _policies(config: RunConfig, world: int) -> Iterator[str]:
    training, checkpoint = config.training, config.checkpoint
    if training.nan_policy != "stop" and not training.check_for_nan_in_loss_and_grad:
        yield (
            f"--nan-policy {training.nan_policy} looks for what --no-check-for-nan-in-loss-and-grad leaves unseen: "
            "leave one out"
        )
    if training.loss_spike_policy == "ignore" and training.loss_spike_factor != TrainingConfig.loss_spike_factor:
        yield (
            f"--loss-spike-factor {training.loss_spike_factor} is not read with --loss-spike-policy ignore: "
            "set stop, skip or rollback"
        )
    for flag, policy in (("nan-policy", training.nan_policy), ("loss-spike-policy", training.loss_spike_policy)):
        if policy != "rollback":
            continue
        if checkpoint.save is None or checkpoint.save_interval is None:
            yield f"--{flag} rollback goes back to a checkpoint of this run: set --save DIR and --save-interval N"
        elif not checkpoint.save_optim:
            yield f"--{flag} rollback needs the optimizer's state in the checkpoint: leave --no-save-optim out"


def _skipped_steps(config: RunConfig, world: int) -> Iterator[str]:
    try:
        parse_step_ranges(config.training.iterations_to_skip)
    except ValueError as error:
        yield f"--iterations-to-skip: {error}"


RULES = (
    Rule(_policies, "loss_spike_factor save_interval"),
    Rule(_skipped_steps),
)
