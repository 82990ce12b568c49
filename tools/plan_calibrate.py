# SPDX-License-Identifier: Apache-2.0
"""`tools/plan.py calibrate`: measures this machine and writes it down as hardware, for all other subcommands."""

import argparse
import datetime
import time
from pathlib import Path

from megatron_core.errors import ConfigError, DataError
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.hardware_text import hardware_text


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare it."""
    command = commands.add_parser("calibrate", help="measure this machine", allow_abbrev=False)
    command.add_argument("--out", type=Path, required=True, metavar="FILE.yaml")
    command.add_argument("--threads", type=int, default=1, metavar="N", help="of a rank (default: 1)")
    command.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of runs (default: fp32)")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Measure and write. Raises ConfigError, and DataError where the file cannot be written."""
    from megatron_core.training.measured_machine import measure_machine  # with torch, which plans do without

    path = arguments.out
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {path} must end in .yaml, as --hardware wants it")
    if arguments.threads < 1:
        raise ConfigError(f"--threads must be at least 1, not {arguments.threads}")
    begin = time.monotonic()
    print("measuring two processes at once, for about a minute; whatever else runs now is measured with them")
    measured = measure_machine(path.stem, arguments.precision, arguments.threads)
    comment = (
        f"Measured on {datetime.date.today()} by tools/plan.py calibrate: ranks of {arguments.threads} "
        f"thread{'s' if arguments.threads > 1 else ''}, {arguments.precision}."
    )
    try:
        path.write_text(hardware_text(measured, comment), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
    print("\n".join(lines(measured)))
    print(f"wrote {path} after {time.monotonic() - begin:.0f} s: give it as --hardware {path}")


def lines(measured: Hardware) -> list[str]:
    """What was found, in short."""
    device = measured.device
    speeds = sorted(one.tflops * 1e3 for one in device.measured_matmuls)
    return [
        f"matrix products: {speeds[0]:.0f} to {speeds[-1]:.0f} GFLOP/s, half of {len(speeds)} above "
        f"{speeds[len(speeds) // 2]:.0f}",
        f"memory {device.memory_gb_per_s:.1f} GB/s, messages {device.link_gb_per_s:.2f} GB/s",
        *(
            f"beside its operators a {one.name} takes {one.seconds * 1e6:.0f} us"
            for one in device.measured_operators
            if one.name in ("layer", "layer backward", "step")
        ),
    ]
