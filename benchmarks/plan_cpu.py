# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured on this machine, which is calibrated in the same run: step time and peak live bytes.

    python benchmarks/plan_cpu.py [--rounds 3] [--hardware mine.yaml] [--large]

Layouts of one and two ranks of one thread, whole runs in turn, medians over all steps but the first two of each run;
with --large also 4 and 8 ranks, which share the cores and are reported only. A last step counts live bytes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from megatron_core.config.cli import parse
from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import Hardware, hardware
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload
from megatron_core.training.metrics import read_metrics

ROOT = Path(__file__).resolve().parent.parent
MODEL = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 256 --max-position-embeddings 256 "
    "--hidden-dropout 0 --attention-dropout 0 --mock-data --vocab-size 8192 --lr 1e-4 --lr-decay-style constant "
    "--eval-iters 0 --train-iters 1000000 --log-interval 1 --micro-batch-size 2 --global-batch-size 16"
)
STEPS = 10
TWO = {
    "one": (1, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "dp2": (2, ""),
    "dp2-zero1": (2, "--use-distributed-optimizer"),
}
LARGE = {
    "tp2-pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
    "pp4": (4, "--pipeline-model-parallel-size 4"),
    "tp2-pp2-dp2": (8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
}
BOUND, MEMORY_BOUND = 0.15, 0.03


@dataclass(frozen=True)
class Measured:
    """Of one run."""

    seconds: list[float]
    live_bytes: int


def launch(processes: int, flags: str, folder: Path) -> Measured:
    """A whole run under torchrun, one thread a rank."""
    more = f"--exit-interval {STEPS} --log-memory-interval {STEPS} --save {folder}"
    program = [str(ROOT / "pretrain_gpt.py"), *f"{MODEL} {flags} {more}".split()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*(launcher if processes > 1 else [sys.executable]), *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    records = [record for record in read_metrics(folder / "metrics.jsonl") if "loss" in record]
    return Measured(
        [record["step_time_s"] for record in records[2:-1]],  # the last one counts, and is slower
        records[-1]["memory_bytes"]["total"],
    )


def predicted(processes: int, flags: str, machine: Hardware) -> tuple[float, int]:
    """Seconds, and bytes of the rank that needs most."""
    workload = Workload.of(parse(f"{MODEL} {flags}".split(), processes).config, processes)
    time = StepModel(workload, machine, Constants()).step()
    return time.total, max(memory.live for memory in MemoryModel(workload, machine).stages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hardware", type=Path, help="calibrated before; default: now")
    parser.add_argument("--large", action="store_true")
    arguments = parser.parse_args()
    layouts = TWO | (LARGE if arguments.large else {})
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.hardware or Path(folder) / "here.yaml"
        if arguments.hardware is None:
            command = [sys.executable, str(ROOT / "tools" / "plan.py"), "calibrate", "--out", str(path)]
            subprocess.run(command, check=True)
        machine = hardware(str(path))
        runs: dict[str, list[Measured]] = {name: [] for name in layouts}
        for round_ in range(arguments.rounds):
            for name, (processes, flags) in layouts.items():
                print(f"  round {round_ + 1}/{arguments.rounds} {name}   ", end="\r", flush=True)
                runs[name].append(launch(processes, flags, Path(folder) / f"{name}-{round_}"))
    print(f"{'layout':14}{'predicted':>11}{'measured':>11}{'error':>8}{'live MB':>10}{'counted':>10}{'error':>8}")
    for name, (processes, flags) in layouts.items():
        seconds, nbytes = predicted(processes, flags, machine)
        measured = statistics.median([one for run in runs[name] for one in run.seconds])
        counted = max(run.live_bytes for run in runs[name])
        within = seconds / measured - 1, nbytes / counted - 1
        over = (name in TWO and abs(within[0]) > BOUND) or abs(within[1]) > MEMORY_BOUND
        print(
            f"{name:14}{seconds:11.4f}{measured:11.4f}{within[0]:+8.1%}{nbytes / 1e6:10.2f}{counted / 1e6:10.2f}"
            f"{within[1]:+8.1%}{'  beyond its bound' if over else ''}"
        )


if __name__ == "__main__":
    main()
