# SPDX-License-Identifier: Apache-2.0
"""Training speed beside what a user would pick instead: transformers' GPT2LMHeadModel with torch's fused AdamW.

    python benchmarks/train_step.py [--what single|memory|ranks|startup|all] [--rounds 5]

One model (6 layers, hidden 512, 8 heads, sequence 512, vocabulary 50304, tied head, no dropout), the same batches.
`single`: one process, 2 threads, microbatch 4; both implementations take steps in turn, so that a noisy machine
disturbs both alike. `memory`: the peak of a process that holds one implementation. `ranks`: layouts of 2 and 8
processes of one thread against one process of two, global batch 8, microbatch 1, whole runs in turn. `startup`: from
launch to the end of the first step. Ratios within one run are to be trusted, single figures are not.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from megatron_core.config.cli import parse
from megatron_core.parallel.context import single_process_context
from megatron_core.training.build import build_run, initial_state
from megatron_core.training.metrics import read_metrics
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step

ROOT = Path(__file__).resolve().parent.parent
MODEL = (
    "--num-layers 6 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--hidden-dropout 0 --attention-dropout 0 --mock-data --vocab-size 50304 --lr 1e-4 --lr-decay-style constant "
    "--eval-iters 0 --train-iters 1000000 --log-interval 1"
)
SINGLE_BATCH = "--micro-batch-size 4 --global-batch-size 4"
RANKS_BATCH = "--micro-batch-size 1 --global-batch-size 8"
LAYOUTS = {
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "dp2": (2, "--overlap-grad-reduce"),
    "pp2": (2, "--pipeline-model-parallel-size 2 --pipeline-split cost"),
    "tp2-pp2-dp2": (8, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"),
}
GOALS = {"tp2": 0.96, "dp2": 0.98, "pp2": 0.72, "tp2-pp2-dp2": 0.86}
Step = Callable[[], float]


def our_step(precision: str) -> Step:
    """A closure that takes one training step and returns its loss."""
    config = parse(f"{MODEL} {SINGLE_BATCH} {precision}".split(), 1).config
    state = initial_state(config)
    run = build_run(config, single_process_context(), open_data(config), state)
    states = [state]

    def step() -> float:
        states[0], outcome = train_step(run, states[0])
        return outcome.loss

    return step


def their_step(precision: str) -> Step:
    """The same with transformers; bf16 as autocast over fp32 weights, its usual way to keep fp32 masters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=50304, n_positions=512, n_embd=512, n_layer=6, n_head=8,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    generator = torch.Generator().manual_seed(1234)

    def step() -> float:
        tokens = torch.randint(50304, (4, 512), generator=generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "--bf16"):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def single(rounds: int) -> None:
    """Steps of both implementations in turn, two threads."""
    torch.set_num_threads(2)
    for precision in ("", "--bf16"):
        steps = {"ours": our_step(precision), "transformers": their_step(precision)}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for round_ in range(rounds + 1):
            for name, step in steps.items():
                begin = time.perf_counter()
                step()
                if round_ > 0:  # the first warms up
                    seconds[name].append(time.perf_counter() - begin)
            print(f"  round {round_}/{rounds}", end="\r", flush=True)
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        pairs = [theirs / ours for ours, theirs in zip(seconds["ours"], seconds["transformers"])]
        goal = 1.25 if precision else 1.05
        print(
            f"{precision or 'fp32':6} ours {2048 / medians['ours']:7.0f} tok/s, transformers "
            f"{2048 / medians['transformers']:7.0f} tok/s, ratio {statistics.median(pairs):.2f} (goal {goal})"
        )


def memory() -> None:
    """Peak resident memory of one process per implementation."""
    for precision in ("", "--bf16"):
        for name in ("ours", "transformers"):
            command = [sys.executable, __file__, "--hold", name, f"--precision={precision}"]
            peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]
            print(f"{precision or 'fp32':6} {name:12} peak {int(peak) / 1024:.0f} MiB")


def hold(name: str, precision: str) -> None:
    """Three steps of one implementation; prints the peak in KiB."""
    torch.set_num_threads(2)
    step = (our_step if name == "ours" else their_step)(precision)
    for _ in range(3):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def launch(processes: int, threads: int, flags: str, steps: int, folder: Path) -> tuple[float, float]:
    """Whole run under torchrun: median seconds a step after the first, seconds from launch to the end of the first."""
    script = [*MODEL.split(), *RANKS_BATCH.split(), *flags.split(), "--exit-interval", str(steps)]
    program = [str(ROOT / "pretrain_gpt.py"), *script, "--save", str(folder)]
    if processes > 1:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    else:
        launcher = [sys.executable]
    begin = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen([*launcher, *program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.02)
    first = time.time() - begin
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(output.decode())
    times = [record["step_time_s"] for record in read_metrics(metrics) if "loss" in record]
    return statistics.median(times[1:]), first


def ranks(rounds: int) -> None:
    """Every layout against one process, whole runs in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in ("one", *LAYOUTS)}
    for round_ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            seconds["one"].append(launch(1, 2, "", 4, Path(folder) / "one")[0])
            for name, (processes, flags) in LAYOUTS.items():
                seconds[name].append(launch(processes, 1, flags, 4, Path(folder) / name)[0])
                print(f"  round {round_ + 1}/{rounds} {name}   ", end="\r", flush=True)
    for name in LAYOUTS:
        pairs = [one / many for one, many in zip(seconds["one"], seconds[name])]
        speed = 4096 / statistics.median(seconds[name])
        print(f"{name:12} {speed:6.0f} tok/s, of one process {statistics.median(pairs):.2f} (goal {GOALS[name]})")


def startup() -> None:
    """Launch to the end of the first step."""
    for name, goal in (("dp2", 13), ("tp2-pp2-dp2", 27)):
        processes, flags = LAYOUTS[name]
        with tempfile.TemporaryDirectory() as folder:
            print(
                f"{name:12} first step done after {launch(processes, 1, flags, 2, Path(folder))[1]:.1f} s (goal {goal})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["single", "memory", "ranks", "startup", "all"], default="all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hold", choices=["ours", "transformers"], help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        hold(arguments.hold, arguments.precision)
        return
    everything = arguments.what == "all"
    if everything or arguments.what == "single":
        single(arguments.rounds)
    if everything or arguments.what == "memory":
        memory()
    if everything or arguments.what == "startup":
        startup()
    if everything or arguments.what == "ranks":
        ranks(arguments.rounds)


if __name__ == "__main__":
    main()
