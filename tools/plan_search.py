# SPDX-License-Identifier: Apache-2.0
"""`tools/plan.py search`: the fastest layouts that fit, and why the first is faster than the run's own."""

import argparse
import textwrap
from collections.abc import Iterator

from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError
from megatron_core.planner.constants import Constants
from megatron_core.planner.explain import explain
from megatron_core.planner.layouts import flags
from megatron_core.planner.report import limit, rates
from megatron_core.planner.search import Found, Planned, search
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload
from tools.plan_machine import Machine, add_machine, asked_run, machine_of, own_layout
from tools.text_table import text_table

WIDTH = 108
"""Columns of the printed flags."""
_JOINED = "\0"


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare it."""
    command = commands.add_parser("search", help="the fastest layouts that fit", allow_abbrev=False)
    add_machine(command)
    command.add_argument("--show", type=int, default=8, metavar="N", help="layouts to show (default: 8)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Search and print. Raises ConfigError, also where nothing fits."""
    machine = machine_of(arguments)
    config = asked_run(arguments.run_flags)
    found = search(config, machine.hardware, machine.devices, Constants())
    print(f"{machine}, batch {config.training.global_batch_size}: {found.fitting} layouts fit")
    for reason, count in sorted(found.dropped.items(), key=lambda item: -item[1]):
        print(f"  {count} do not: {reason}")
    if not found.ranked:
        raise ConfigError(_nothing_fits(found, machine))
    for line in ranking(found, machine, arguments.show):
        print(line)
    for line in pasted(found.ranked[0], config):
        print(line)
    own = own_layout(arguments.run_flags, machine.devices)
    if own is not None:
        for line in gains(Workload.of(own, machine.devices), found.ranked[0].workload, machine):
            print(line)


def ranking(found: Found, machine: Machine, show: int) -> Iterator[str]:
    """The table of the best, and what was faster but too large."""
    best = found.ranked[0].time
    yield ""
    yield from text_table(
        HEADER, [_row(one, machine, limit(one.time, best)) for one in found.ranked[:show]], right=HEADER[:4]
    )
    if found.too_large:
        room = machine.hardware.device.memory_gb
        yield ""
        yield f"faster, but larger than {room:g} GB:"
        rows = [_row(one, machine, _largest_part(one)) for one in found.too_large]
        yield from text_table((*HEADER[:-1], "most of it"), rows, right=HEADER[:4])


HEADER = ("s/step", "ktok/s", "mfu", "GB", "layout", "limited by")


def _row(one: Planned, machine: Machine, last: str) -> tuple[str, ...]:
    tokens, _, mfu = rates(one.workload, machine.hardware, one.time.total)
    numbers = f"{one.time.total:.2f}", f"{tokens / 1e3:.1f}", f"{mfu:.3f}", f"{one.memory.total / 1e9:.1f}"
    return (*numbers, one.layout.name, last)


def _largest_part(one: Planned) -> str:
    parts = vars(one.memory)
    name = max(parts, key=lambda name: parts[name])
    return f"{name} {parts[name] / 1e9:.1f} GB"


def pasted(best: Planned, base: RunConfig) -> Iterator[str]:
    """The winner as flags."""
    yield ""
    yield "flags of the first, for flags=( ) of an sbatch script behind those of the model:"
    found = [*flags(best.config, base), *(["--optimizer-cpu-offload"] if best.workload.optimizer_offload else [])]
    # A flag's values stay on its line.
    text = " ".join(flag.replace(" ", _JOINED) for flag in found)
    lines = textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    yield from (line.replace(_JOINED, " ") for line in lines)


def gains(own: Workload, best: Workload, machine: Machine) -> Iterator[str]:
    """From the run's own layout to the best one, by cause."""
    before = StepModel(own, machine.hardware, Constants()).step().total
    causes = explain(own, best, machine.hardware, Constants())
    if not causes:
        yield "\nthe file's own layout is the first"
        return
    after = causes[-1].seconds
    yield f"\nthe file's own layout takes {before:.2f} s: {before / after - 1:+.1%} throughput by"
    rows = [
        (
            f"{cause.seconds:.2f}",
            f"{cause.gain:+.1%}",
            cause.name,
            f"{cause.published.gain:+.1%}, {cause.published.source}" if cause.published else "",
        )
        for cause in causes
    ]
    yield from text_table(("s/step", "gain", "cause", "measured elsewhere"), rows, right=("s/step", "gain"))


def _nothing_fits(found: Found, machine: Machine) -> str:
    if not found.too_large:
        return f"no layout divides the model and its batch over {machine.devices} devices"
    least = min(found.too_large, key=lambda one: one.memory.total)
    return (
        f"no layout fits: {least.layout.name} needs {least.memory.total / 1e9:.1f} of "
        f"{machine.hardware.device.memory_gb:g} GB ({_largest_part(least)}); take more devices or a smaller model"
    )
