# SPDX-License-Identifier: Apache-2.0
"""Timelines that were measured above their simulations: of sleeping stages, and of the demo on two ranks.

    python benchmarks/plan_timeline.py [--what sleep|demo|both] [--hardware mine.yaml] [--folder docs/img]

`sleep`: 8 stages of 2 chunks run the real program, runtime and messages over gloo, but their chunks sleep twice as long
as the planner says that those of a 175B model take on 64 A100. `demo`: configs/demo_cpu.yaml on 2 stages
of one thread, this machine being calibrated first unless --hardware gives it. Pictures go to the folder.
"""

import argparse
import dataclasses
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import nn

from megatron_core.config.cli import parse
from megatron_core.config.run import RunConfig
from megatron_core.model.microbatch import Microbatch
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import RankGrid
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.picture import Panel, save
from megatron_core.pipeline.programs import Programs
from megatron_core.pipeline.recorded import RecordedRuntime, timeline
from megatron_core.pipeline.timeline import Span, Timeline
from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import hardware
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue
from megatron_core.training.build import build_run, initial_state
from megatron_core.training.run_data import open_data
from megatron_core.training.train_step import train_step

ROOT = Path(__file__).resolve().parent.parent
LARGE = (
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 "
    "--vocab-size 51200 --mock-data --lr 1e-4 --train-iters 1 --bf16 --tensor-model-parallel-size 8 "
    "--sequence-parallel --pipeline-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 2 "
    "--micro-batch-size 1 --global-batch-size 16"
)
DEMO = ROOT / "configs" / "demo_cpu.yaml"
DEMO_FLAGS = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --vocab-size 256 --mock-data"
LONGER = 2.0
"""Of the planned durations: what the stages sleep."""
STEPS = 12
Durations = Mapping[tuple[int, str], float]
"""Seconds by chunk and letter of the action's kind."""


class _Sleep(torch.autograd.Function):
    """x, whose gradient takes its time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.seconds = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.seconds)
        return grad, None, None


class SleepingChunk(nn.Module):
    """Stands for a chunk of a model; messages are [s, b, 1], losses [b, s]."""

    def __init__(self, forward_s: float, backward_s: float, *, last: bool) -> None:
        super().__init__()
        self._seconds, self._last = (forward_s, backward_s), last

    def forward(self, hidden: torch.Tensor | None, batch: Microbatch) -> torch.Tensor:
        if hidden is None:
            hidden = torch.zeros(batch.seq_length, 1, 1, requires_grad=True)
        y = _Sleep.apply(hidden, *self._seconds)
        return y.squeeze(-1).t() if self._last else y


def sleeping_step(ctx: ParallelContext, name: str, v: int, m: int, durations: Durations) -> tuple[Span, ...]:
    """The spans of one rank of a pipeline whose stages sleep."""
    p, stage = ctx.pp.size, ctx.pp.coordinate
    chunks = [
        SleepingChunk(durations[chunk, "F"], durations[chunk, "B"], last=stage == p - 1 and chunk == v - 1)
        for chunk in range(v)
    ]
    runtime = RecordedRuntime(chunks, ctx, WeightGradientQueue(), (4, 1, 1), torch.float32)  # type: ignore[arg-type]
    batch = Microbatch(position_ids=torch.arange(4)[None], loss_mask=torch.ones(1, 4, dtype=torch.bool))
    program = Programs(name, p, v, stage).training(m)
    runtime.run(program, [batch] * m, 1.0)  # connections are made
    dist.barrier()
    runtime.run(program, [batch] * m, 1.0)
    return runtime.spans


def demo_steps(ctx: ParallelContext, config: RunConfig) -> list[tuple[Span, ...]]:
    """The spans of one rank in each of the demo's first steps but two."""
    states = [initial_state(config)]
    run = build_run(config, ctx, open_data(config), states[0])
    plain = run.runtime
    recorded = RecordedRuntime(plain.chunks, ctx, plain.queue, plain.message_shape, plain.dtype)
    run = dataclasses.replace(run, runtime=recorded)
    spans = []
    for _ in range(STEPS):
        states[0], _ = train_step(run, states[0])
        spans.append(recorded.spans)
    return spans[2:]


def _rank(rank: int, pp: int, store: str, function: Callable[..., Any], more: tuple[Any, ...], results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, pp), rank=rank, world_size=pp)
    ctx = create_context(RankGrid(pp=pp), rank, torch.device("cpu"))
    results.put((rank, function(ctx, *(one[rank] if isinstance(one, list) else one for one in more))))
    dist.barrier()


def on_ranks(pp: int, function: Callable[..., Any], *more: Any) -> list[Any]:
    """Results of function(ctx, ...) on so many stages; of a list each gets its own item."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=_rank, args=(rank, pp, store, function, more, results), daemon=True)
            for rank in range(pp)
        ]
        for process in ranks:
            process.start()
        found = dict(results.get(timeout=300) for _ in ranks)
        for process in ranks:
            process.join(10)
    return [found[rank] for rank in range(pp)]


def sleep() -> tuple[Panel, Panel]:
    """Measured and simulated."""
    workload = Workload.of(parse(LARGE.split(), 64).config, 64)
    model = StepModel(workload, hardware("dgx-a100-80"), Constants())
    kinds = (Kind.F, Kind.B)
    durations = [
        {(c, kind.value): LONGER * model.duration(stage, Action(kind, 0, c)) for c in range(2) for kind in kinds}
        for stage in range(8)
    ]
    spans = on_ranks(8, sleeping_step, workload.schedule, 2, workload.microbatches, durations)
    planned = Timeline(
        tuple(
            tuple(Span(span.action, LONGER * span.start, LONGER * span.end) for span in stage)
            for stage in model.timeline.stages
        )
    )
    return _panels("8 sleeping stages of 2 chunks", timeline(spans), planned, 2)


def demo_config() -> RunConfig:
    """The demo's, on tokens that need no preparation."""
    fields = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    del fields["data"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "demo.yaml"
        file.write_text(yaml.safe_dump(fields), encoding="utf-8")
        return parse(["--config", str(file), *DEMO_FLAGS.split()], 2).config


def demo(path: Path) -> tuple[Panel, Panel]:
    """Measured (the step of median length) and simulated."""
    config = demo_config()
    model = StepModel(Workload.of(config, 2), hardware(str(path)), Constants())
    steps = [timeline(stages) for stages in zip(*on_ranks(2, demo_steps, config))]
    middle = sorted(steps, key=lambda step: step.makespan)[len(steps) // 2]
    bubble = statistics.median(step.bubble for step in steps)
    print(f"demo: median bubble of {len(steps)} steps {bubble:.1%}")
    return _panels("the demo on 2 stages", middle, model.timeline, 1)


def _panels(name: str, measured: Timeline, simulated: Timeline, v: int) -> tuple[Panel, Panel]:
    panels = tuple(
        Panel(f"{name}, {how}", f"makespan {one.makespan:.3f} s   ·   bubble {one.bubble:.1%}", one, v)
        for how, one in (("measured", measured), ("simulated", simulated))
    )
    for panel in panels:
        print(f"{panel.title}: {panel.summary}")
    print(
        f"simulated against measured: makespan {simulated.makespan / measured.makespan - 1:+.1%}, "
        f"bubble {simulated.bubble / measured.bubble - 1:+.1%}"
    )
    return panels[0], panels[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["sleep", "demo", "both"], default="both")
    parser.add_argument("--hardware", type=Path, help="calibrated before; default: now")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "img")
    arguments = parser.parse_args()
    if arguments.what != "demo":
        save(sleep(), arguments.folder / "timeline_sleeping.png")
    if arguments.what != "sleep":
        with tempfile.TemporaryDirectory() as folder:
            path = arguments.hardware or Path(folder) / "here.yaml"
            if arguments.hardware is None:
                command = [sys.executable, str(ROOT / "tools" / "plan.py"), "calibrate", "--out", str(path)]
                subprocess.run(command, check=True)
            save(demo(path), arguments.folder / "timeline_demo.png")


if __name__ == "__main__":
    main()
