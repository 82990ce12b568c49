# SPDX-License-Identifier: Apache-2.0
"""Data parallelism beside what a user would pick instead: torch's DDP in fp32, DeepSpeed's ZeRO-1 in bf16.

    python benchmarks/data_parallel.py [--rounds 7] [--what speed|memory|all]

Two ranks of one thread, gloo, microbatch 4, clipping at 1. Theirs train a GPT in plain torch as nanoGPT writes it, from
our initial weights, on our batches: losses of all are shown and have to agree. `speed`: one pair of processes holds all
implementations, which take steps in turn, in an order that moves on by one each round; ratios are medians of rounds.
`share` is the processor time of a step over that of its cores: well below 1 something else was running. `memory`: the
peak of a process that holds one of them. DeepSpeed (`pip install deepspeed`) is left out where it is missing.
"""

import argparse
import gc
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from plain_gpt import PlainGPT
from torch.nn.parallel import DistributedDataParallel

from megatron_core.config.cli import parse
from megatron_core.parallel.collectives import MAX, all_reduce, barrier
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context
from megatron_core.training.build import Run, build_run, initial_state
from megatron_core.training.launch import choose_device, detect, process_group
from megatron_core.training.mesh import grid_of
from megatron_core.training.run_data import open_data, training_plans
from megatron_core.training.train_step import train_step

RANKS, CLIP = 2, 1.0
MODEL = (
    "--num-layers 6 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--hidden-dropout 0 --attention-dropout 0 --vocab-size 50304 --lr 1e-4 --lr-decay-style constant "
    f"--clip-grad {CLIP} --mock-data --num-workers 0 --eval-iters 0 --train-iters 1000000 --micro-batch-size 4 "
    "--global-batch-size 8 --overlap-grad-reduce"
)
OURS = {
    "ours": "",
    "ours, ZeRO-1": "--use-distributed-optimizer",
    "ours, ZeRO-1, bf16": "--use-distributed-optimizer --bf16",
}
DDP, DEEPSPEED = "torch DDP", "DeepSpeed ZeRO-1, bf16"
CONTESTANTS = (*OURS, DDP, DEEPSPEED)
GOALS = (
    ("ours, ZeRO-1", "ours", 0.98),
    ("ours", DDP, 1.0),
    ("ours, ZeRO-1", DDP, 1.0),
    ("ours, ZeRO-1, bf16", DEEPSPEED, 1.1),
)
Step = Callable[[], float]


def our_run(flags: str, ctx: ParallelContext) -> Run:
    """A run of ours at its first step."""
    config = parse(flags.split(), RANKS).config
    return build_run(config, ctx, open_data(config), initial_state(config))


def our_step(run: Run) -> Step:
    """A closure that takes one training step and returns the loss of the batch."""
    states = [initial_state(run.config)]

    def step() -> float:
        states[0], outcome = train_step(run, states[0])
        return outcome.loss

    return step


def batches(run: Run) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and labels [b, s] of this rank, step after step: those that `run` reads. It does not keep the run."""
    samples = run.data.datasets.train
    plans = training_plans(run.config, run.ctx, run.batch_schedule, 0)

    def batch(numbers: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.stack([torch.as_tensor(samples.sample(number).tokens) for number in numbers])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    return (batch(numbers) for (numbers,) in plans)


def ddp_step(ours: Run) -> Step:
    """The same with torch's DDP and its fused AdamW."""
    model, data = PlainGPT(ours), batches(ours)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.groups(), lr=ours.config.optim.lr, fused=True)

    def step() -> float:
        loss = ddp(*next(data))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def deepspeed_step(ours: Run) -> Step | None:
    """The same with DeepSpeed's ZeRO-1, bf16 weights and fp32 masters; None where it is not installed."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else it looks for one and says so at length
    try:
        import deepspeed
    except ImportError as error:
        if ours.ctx.rank == 0:
            print(f"without DeepSpeed ({error}): pip install deepspeed")
        return None
    model, data = PlainGPT(ours), batches(ours)
    settings = {
        "train_micro_batch_size_per_gpu": ours.config.training.micro_batch_size,
        "gradient_clipping": CLIP,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": ours.config.optim.lr}},
        "steps_per_print": 1 << 30,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.groups(), config=settings, dist_init_required=False
    )

    def step() -> float:
        loss = engine(*next(data))
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step


def contestants(names: tuple[str, ...], flags: str, ctx: ParallelContext) -> dict[str, Step]:
    """By name, each at its first step. Theirs take their weights and batches from a run of ours."""
    found: dict[str, Step | None] = {}
    for name in names:
        if name in OURS:
            found[name] = our_step(our_run(f"{flags} {OURS[name]}", ctx))
        else:
            found[name] = (ddp_step if name == DDP else deepspeed_step)(our_run(flags, ctx))
    gc.collect()  # the runs that have lent their weights
    return {name: step for name, step in found.items() if step is not None}


@dataclass
class Taken:
    """What the rounds of one contestant came to."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Seconds of processor time, the mean over ranks."""
    losses: list[float] = field(default_factory=list)


def speed(flags: str, ctx: ParallelContext, rounds: int) -> None:
    """Steps of all in turn; the first round, which warms up, does not count."""
    steps = list(contestants(CONTESTANTS, flags, ctx).items())
    taken = {name: Taken() for name, _ in steps}
    for round_ in range(rounds + 1):
        turn = round_ % len(steps)
        for name, step in steps[turn:] + steps[:turn]:
            barrier(ctx.world)
            begin, begin_cpu = time.perf_counter(), time.process_time()
            loss = step()
            barrier(ctx.world)
            seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
            loss, cpu = (all_reduce(torch.tensor([loss, cpu], dtype=torch.float64), ctx.world) / RANKS).tolist()
            taken[name].losses.append(loss)
            if round_ > 0:
                taken[name].seconds.append(seconds)
                taken[name].processor.append(cpu)
        if ctx.rank == 0:
            print(f"  round {round_}/{rounds}", end="\r", flush=True)
    if ctx.rank == 0:
        config = parse(flags.split(), RANKS).config
        show(taken, config.training.global_batch_size * config.model.seq_length)


def show(taken: dict[str, Taken], tokens: int) -> None:
    """The figures; `tokens` a step."""
    for name, one in taken.items():
        middle = statistics.median(one.seconds)
        share = statistics.median(cpu / seconds for cpu, seconds in zip(one.processor, one.seconds))
        print(
            f"{name:<23}{tokens / middle:6.0f} tok/s, {middle:.3f} s a step ({min(one.seconds):.3f} to "
            f"{max(one.seconds):.3f}), share {share:.2f}, loss {one.losses[0]:.4f} to {one.losses[-1]:.4f}"
        )
    for name, other, goal in GOALS:
        if other in taken:
            ours, theirs = taken[name], taken[other]
            ratio = statistics.median(b / a for a, b in zip(ours.seconds, theirs.seconds))
            cpu = statistics.median(b / a for a, b in zip(ours.processor, theirs.processor))
            print(f"{name} / {other}: {ratio:.3f} x its tokens/s (goal {goal}); by processor time {cpu:.3f}")


def memory(name: str, flags: str, ctx: ParallelContext) -> None:
    """Three steps of one contestant, and the larger peak of the ranks."""
    for step in contestants((name,), flags, ctx).values():
        for _ in range(3):
            step()
        peak = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024])
        all_reduce(peak, ctx.world, MAX)
        if ctx.rank == 0:
            print(f"{name:<23}peak {peak.item():.0f} MiB a rank")


def inside(arguments: argparse.Namespace) -> None:
    """One rank."""
    launch = detect()
    flags = f"{MODEL} {arguments.model}"
    config = parse(flags.split(), RANKS).config
    device = choose_device(launch, config.parallel)
    with process_group(launch, device, config.parallel.distributed_timeout_minutes):
        ctx = create_context(grid_of(config, RANKS), launch.rank, device)
        if arguments.inside == "speed":
            speed(flags, ctx, arguments.rounds)
        else:
            memory(arguments.inside, flags, ctx)
    sys.stdout.flush()
    os._exit(0)  # the interpreter's own end may meet gloo's threads at work and abort


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["speed", "memory", "all"], default="all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", default="", metavar="FLAGS", help="of ours, for another model than the one above")
    parser.add_argument("--inside", choices=["speed", *CONTESTANTS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments)
    parts = {"speed": ["speed"], "memory": list(CONTESTANTS), "all": ["speed", *CONTESTANTS]}[arguments.what]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    passed_on = ["--rounds", str(arguments.rounds), f"--model={arguments.model}"]
    for part in parts:
        command = [*launcher, __file__, *passed_on, "--inside", part]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    main()
