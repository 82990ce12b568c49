# SPDX-License-Identifier: Apache-2.0
"""`tools/plan.py simulate`: a step of one layout, played; as a trace for Perfetto, as a picture, and in numbers."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from megatron_core.config.run import RunConfig
from megatron_core.errors import DataError
from megatron_core.pipeline.picture import Panel, check_format, save
from megatron_core.pipeline.timeline import Timeline
from megatron_core.planner.constants import Constants
from megatron_core.planner.report import time_table
from megatron_core.planner.step_time import StepModel, StepTime
from megatron_core.planner.trace import chrome_trace
from megatron_core.planner.workload import Workload
from megatron_core.training.mesh import grid_of
from tools.plan_machine import Machine, add_machine, given_run, machine_of
from tools.plan_show import title
from tools.text_table import text_table

STAGES = 8
"""Stages that the table shows, evenly spread."""


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare it."""
    command = commands.add_parser("simulate", help="the timeline of one layout", allow_abbrev=False)
    add_machine(command)
    command.add_argument("--trace", type=Path, metavar="FILE.json", help="for ui.perfetto.dev and chrome://tracing")
    command.add_argument("--picture", type=Path, metavar="FILE.png|svg", help="of the pipeline")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Play, print and write. Raises ConfigError, and DataError where a file cannot be written."""
    if arguments.picture is not None:
        check_format(arguments.picture)
    machine = machine_of(arguments)
    config = given_run(arguments.run_flags, machine.devices)
    workload = Workload.of(config, machine.devices)
    model = StepModel(workload, machine.hardware, Constants())
    step = model.step()
    print("\n".join(lines(f"{machine}: {title(workload)}", model.timeline, step)))
    try:
        if arguments.trace is not None:
            write_trace(arguments.trace, config, machine, model.timeline, step)
        if arguments.picture is not None:
            save(
                [Panel(title(workload), summary(model.timeline, step), model.timeline, workload.chunks)],
                arguments.picture,
            )
    except OSError as error:
        raise DataError(f"{error.filename} cannot be written: {error.strerror}") from error


def write_trace(path: Path, config: RunConfig, machine: Machine, timeline: Timeline, step: StepTime) -> None:
    """Write the Chrome trace."""
    trace = chrome_trace(timeline, grid_of(config, machine.devices), step)
    path.write_text(json.dumps(trace, separators=(",", ":")), encoding="utf-8")


def summary(timeline: Timeline, step: StepTime) -> str:
    """The step in a line."""
    exposed = step.tp + step.p2p + step.dp
    return (
        f"step {step.total:.3f} s: pipeline {timeline.makespan:.3f} s, of which bubble "
        f"{step.bubble:.3f} s ({timeline.bubble:.1%} of the busy time); communication that nothing hides "
        f"{exposed:.3f} s ({exposed / step.total:.1%})"
    )


def lines(name: str, timeline: Timeline, step: StepTime) -> Iterator[str]:
    """What is printed."""
    yield name
    yield summary(timeline, step)
    yield ""
    header = ("part of a step", "seconds", "share")
    yield from text_table(header, time_table(step), right=header[1:])
    yield ""
    header = ("stage", "busy s", "idle s", "first start", "last end")
    yield from text_table(header, list(_stages(timeline)), right=header)


def _stages(timeline: Timeline) -> Iterator[tuple[str, ...]]:
    p = len(timeline.stages)
    for stage in sorted({round(i * (p - 1) / (STAGES - 1)) for i in range(STAGES)}):
        spans = timeline.stages[stage]
        busy = sum(span.end - span.start for span in spans)
        numbers = busy, timeline.makespan - busy, spans[0].start, spans[-1].end
        yield (str(stage), *(f"{number:.3f}" for number in numbers))
