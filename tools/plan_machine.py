# SPDX-License-Identifier: Apache-2.0
"""What the subcommands of tools/plan.py share: the machine that is asked for, and the run on it."""

import argparse
import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_core.config.arguments import split_arguments
from megatron_core.config.cli import parse
from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError, UserError
from megatron_core.planner.hardware import Hardware, hardware

NEUTRAL = shlex.split(
    "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --pipeline-schedule auto "
    "--num-layers-per-virtual-pipeline-stage none --num-virtual-stages-per-pipeline-rank none "
    "--decoder-first-pipeline-num-layers none --decoder-last-pipeline-num-layers none --micro-batch-size "
    "1"
)
"""A layout that suits every run, for those who look for another."""


@dataclass(frozen=True)
class Machine:
    """So many devices of a cluster."""

    hardware: Hardware
    devices: int

    def __str__(self) -> str:
        return f"{self.devices} x {self.hardware.device.name} ({self.hardware.name})"


def add_machine(command: argparse.ArgumentParser) -> None:
    """The flags that say which; all others are the run's."""
    command.add_argument("--hardware", required=True, metavar="NAME|FILE", help="a name of clusters.yaml, or a file")
    size = command.add_mutually_exclusive_group(required=True)
    size.add_argument("--nodes", type=int, metavar="N", help="nodes, all of their devices")
    size.add_argument("--devices", type=int, metavar="N", help="devices")
    command.set_defaults(takes_run_flags=True)


def machine_of(arguments: argparse.Namespace) -> Machine:
    """Raises ConfigError for hardware that is not known."""
    found = hardware(arguments.hardware)
    devices = arguments.devices or (arguments.nodes or 0) * found.devices_per_node
    if devices < 1:
        raise ConfigError(f"--nodes {arguments.nodes}, --devices {arguments.devices}: at least 1 is needed")
    return Machine(found, devices)


def asked_run(flags: Sequence[str]) -> RunConfig:
    """The run, whatever its layout. Raises ConfigError for anything else that is wrong with it."""
    parsed = parse([*_beside_the_plan(flags), *flags, *NEUTRAL], 1)
    training = parsed.asked.training
    if training.global_batch_size is None and training.step_batch_size_schedule is not None:
        training = dataclasses.replace(training, global_batch_size=parsed.config.training.global_batch_size)
    return _with_vocabulary(dataclasses.replace(parsed.asked, training=training))


def given_run(flags: Sequence[str], devices: int) -> RunConfig:
    """The run in its own layout on so many devices, resolved. Raises ConfigError where it is not valid there."""
    return _with_vocabulary(parse([*_beside_the_plan(flags), *flags], devices).config)


def own_layout(flags: Sequence[str], devices: int) -> RunConfig | None:
    """The same, None where it is not valid."""
    try:
        return given_run(flags, devices)
    except UserError:
        return None


def _beside_the_plan(flags: Sequence[str]) -> list[str]:
    """Flags that a run needs and its plan does not, where they are not given; with a file they are in it."""
    names = {argument.name for argument in split_arguments(flags)}
    if "config" in names:
        return []
    found = [] if "lr" in names else ["--lr", "1"]
    found += [] if names & {"train-iters", "train-samples"} else ["--train-iters", "1"]
    has_data = any(name.endswith(("data-path", "data-args-path")) or name == "mock-data" for name in names)
    return found if has_data else [*found, "--mock-data"]


def _with_vocabulary(config: RunConfig) -> RunConfig:
    if config.model.vocab_size is None:
        raise ConfigError("the plan reads no tokenizer: give --vocab-size, such as 50257 for GPT-2's")
    return config
