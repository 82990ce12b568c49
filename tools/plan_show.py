# SPDX-License-Identifier: Apache-2.0
"""`tools/plan.py show`: what to expect of one layout."""

import argparse
from collections.abc import Iterator

from megatron_core.config.run import RunConfig
from megatron_core.planner.constants import Constants
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.report import memory_table, rates, time_table
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload
from tools.plan_machine import Machine, add_machine, given_run, machine_of
from tools.text_table import text_table


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare it."""
    command = commands.add_parser("show", help="time and memory of one layout", allow_abbrev=False)
    add_machine(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print it. Raises ConfigError."""
    machine = machine_of(arguments)
    config = given_run(arguments.run_flags, machine.devices)
    print("\n".join(lines(config, machine)))


def lines(config: RunConfig, machine: Machine) -> Iterator[str]:
    """What is printed of a resolved run."""
    workload = Workload.of(config, machine.devices)
    time = StepModel(workload, machine.hardware, Constants()).step()
    tokens, tflops, mfu = rates(workload, machine.hardware, time.total)
    yield f"{machine}: {title(workload)}"
    yield f"batch {workload.global_batch}, {tokens / 1e3:.1f} ktok/s, {tflops:.0f} TFLOP/s a device, mfu {mfu:.3f}"
    if config.training.train_samples is not None:
        days = config.training.train_samples * workload.model.seq_length / tokens / 86400
        yield f"{config.training.train_samples * workload.model.seq_length / 1e9:.0f} Gtok in {days:.1f} days"
    yield ""
    header = ("part of a step", "seconds", "share")
    yield from text_table(header, time_table(time), right=header[1:])
    yield ""
    model = MemoryModel(workload, machine.hardware)
    stages = sorted({0, workload.pp // 2, workload.pp - 1})
    header = ("GB of a rank", *(f"stage {stage}" for stage in stages))
    yield from text_table(header, memory_table({stage: model.stage(stage) for stage in stages}), right=header[1:])
    yield f"of {machine.hardware.device.memory_gb:g} GB"


def title(workload: Workload) -> str:
    """The layout in a line."""
    schedule = f", {workload.schedule}" if workload.pp > 1 else ""
    chunks = f" of {workload.chunks} chunks" if workload.chunks > 1 else ""
    return (
        f"tp {workload.tp} x pp {workload.pp} x dp {workload.dp}{schedule}{chunks}, microbatches of "
        f"{workload.micro_batch}, recompute {workload.recompute.granularity or 'nothing'}"
        f"{', sequence parallel' if workload.sequence_parallel else ''}"
    )
