# SPDX-License-Identifier: Apache-2.0
"""Flags and ranks of programs that run a trained model: alone, under torchrun or under srun."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from megatron_core.config.parallel import ParallelConfig
from megatron_core.errors import ConfigError, UserError
from megatron_core.parallel.collectives import barrier
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import RankGrid
from megatron_core.training.console import set_up_console
from megatron_core.training.launch import Launch, choose_device, detect, process_group
from tools.run_command import BAD_INPUT, INTERRUPTED

_SPEAKER_FIRST_S = 10.0
_BACKENDS = ("auto", "nccl", "gloo")


def add_layout_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of the layout, which are training's."""
    add = parser.add_argument
    add("--tensor-model-parallel-size", type=int, default=1, metavar="TP", help="as in training, but any that fits")
    add("--pipeline-model-parallel-size", type=int, default=1, metavar="PP", help="as in training, but any that fits")
    add("--distributed-backend", choices=_BACKENDS, default="auto", help="as in training")
    add("--distributed-timeout-minutes", type=float, default=10.0, metavar="N", help="as in training")


def run_on_ranks(arguments: argparse.Namespace, run: Callable[[ParallelContext], None]) -> int:
    """Join the other ranks and run; the exit code of this one: 0, 2 for what the user can mend, 130 interrupted.

    Ranks beyond tp x pp make dp replicas. Errors that users can mend must come to all ranks alike: one of them speaks.
    """
    local_rank = 0
    try:
        launch = detect()
        local_rank = launch.local_rank
        set_up_console(launch.rank, sys.stderr)
        with _context(arguments, launch) as ctx:
            return _run(run, ctx)
    except UserError as error:
        if local_rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            # A launcher ends a node's other ranks when one leaves: the one that speaks must not be among those.
            time.sleep(_SPEAKER_FIRST_S)
        return BAD_INPUT
    except KeyboardInterrupt:
        if local_rank == 0:
            print("interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED


def _run(run: Callable[[ParallelContext], None], ctx: ParallelContext) -> int:
    code = 0
    try:
        run(ctx)
    except UserError as error:
        code = BAD_INPUT
        if ctx.rank == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
    barrier(ctx.world)  # until rank 0, which may hold the store, has said all
    return code


@contextlib.contextmanager
def _context(arguments: argparse.Namespace, launch: Launch) -> Iterator[ParallelContext]:
    tp, pp = arguments.tensor_model_parallel_size, arguments.pipeline_model_parallel_size
    timeout = arguments.distributed_timeout_minutes
    for name, value in (("tensor-model-parallel-size", tp), ("pipeline-model-parallel-size", pp)):
        if value < 1:
            raise ConfigError(f"--{name} is {value}; it must be at least 1")
    if not timeout > 0:
        raise ConfigError(f"--distributed-timeout-minutes is {timeout}; it must be above 0")
    if launch.world_size % (tp * pp):
        raise ConfigError(
            f"{launch.world_size} ranks are no multiple of tp {tp} x pp {pp} = {tp * pp}: start with torchrun "
            f"--nproc-per-node {tp * pp}, or set --tensor-model-parallel-size and --pipeline-model-parallel-size"
        )
    device = choose_device(launch, ParallelConfig(distributed_backend=arguments.distributed_backend))
    grid = RankGrid(tp=tp, pp=pp, dp=launch.world_size // (tp * pp))
    with process_group(launch, device, timeout):
        yield create_context(grid, launch.rank, device, timeout_minutes=timeout)
