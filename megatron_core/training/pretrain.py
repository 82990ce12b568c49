# SPDX-License-Identifier: Apache-2.0
"""From a command line to an exit code: the story of a run in one place."""

import logging
import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from megatron_core.config.cli import Parsed, parse
from megatron_core.config.run import RunConfig
from megatron_core.config.yaml_file import dump_yaml
from megatron_core.errors import UserError
from megatron_core.parallel.collectives import MAX, all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context
from megatron_core.training.console import set_up_console
from megatron_core.training.dry_run_report import dry_run_report
from megatron_core.training.exit_file import LastWord
from megatron_core.training.faults import FaultError
from megatron_core.training.launch import Launch, choose_device, detect, process_group
from megatron_core.training.mesh import grid_of, kv_replicas
from megatron_core.training.plan_check import check_plan_hardware
from megatron_core.training.restart import restarted
from megatron_core.training.resume import checkpoint_model_args
from megatron_core.training.run_data import RunData, open_data
from megatron_core.training.save_directory import check_save_directory
from megatron_core.training.session import EXIT_BAD_INPUT, begin, run_to_end
from megatron_core.training.signals import SignalFlag
from megatron_core.training.stop import EXIT_OTHER, StopRequests, process_code
from megatron_core.training.trackers import check_trackers
from megatron_core.training.watchdog import Watchdog

_SPEAKER_FIRST_S = 10.0
LOGGER = logging.getLogger("megatron_core")


def pretrain(argv: Sequence[str], started: float) -> int:
    """Run one rank; the process's exit code.

    User errors are one message from one rank of each node, as long as all ranks meet the same ones: before the process
    group exists. Later a rank may be alone with its error and signs it.

    `started`: time.monotonic() when the process began, before its imports.
    """
    local_rank = 0
    try:
        launch = detect()
        local_rank = launch.local_rank
        world_size = launch.world_size if launch.launcher != "alone" else None
        parsed = parse(argv, world_size, checkpoint_model=checkpoint_model_args)
        if parsed.print_config:
            if local_rank == 0:
                sys.stdout.write(dump_yaml(parsed.config))
            return 0
        if parsed.dry_run:
            if local_rank == 0:
                sys.stdout.write(dry_run_report(parsed.config, parsed.world_size, parsed.rank))
            return 0
        return _run_rank(parsed, launch, started)
    except UserError as error:
        if local_rank == 0:
            sys.stderr.write(f"{error}\n")
        else:
            # A launcher ends a node's other ranks when one leaves: the one that speaks must not be among those.
            time.sleep(_SPEAKER_FIRST_S)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        if local_rank == 0:
            sys.stderr.write("interrupted: the run ends where it stands\n")
        return EXIT_OTHER


def _run_rank(parsed: Parsed, launch: Launch, started: float) -> int:
    set_up_console(launch.rank)
    for note in parsed.notes:
        LOGGER.info(note)
    config = parsed.config
    grid = grid_of(config, launch.world_size)
    check_save_directory(config.checkpoint.save)
    check_trackers(config.logging)
    check_plan_hardware(config)
    device = choose_device(launch, config.parallel)
    data = open_data(config)
    timeout = config.parallel.distributed_timeout_minutes
    with (
        SignalFlag(enabled=config.training.exit_signal_handler) as signals,
        process_group(launch, device, timeout) as store,
    ):
        ctx = create_context(grid, launch.rank, device, kv_replicas=kv_replicas(config), timeout_minutes=timeout)
        # Agents of torchrun count starts each for itself; whether the run goes on must be the same for all ranks.
        restarts = torch.tensor([launch.restarts], dtype=torch.int64, device=device)
        config = restarted(config, int(all_reduce(restarts, ctx.world, MAX)))
        requests = StopRequests(config.training, signals, rank=ctx.rank, started=started)
        last_word = LastWord(config.checkpoint.save, ctx.rank)
        watchdog = Watchdog(
            ctx.log,
            store,
            rank=ctx.rank,
            world_size=launch.world_size,
            timeout_s=60 * timeout,
            on_hang=lambda found: last_word.say(EXIT_OTHER, found),
        )
        try:
            code = _begin_and_run(config, ctx, data, store, requests, last_word, started)
        except Exception as error:
            # A bug, or what a collective raises when a peer has died: others may wait for this rank, or know more.
            watchdog.report_now(f"{type(error).__name__}: {error}")
            raise
        finally:
            watchdog.close()
    return process_code(code, launch.launcher)


def _begin_and_run(
    config: RunConfig,
    ctx: ParallelContext,
    data: RunData,
    store: dist.Store,
    requests: StopRequests,
    last_word: LastWord,
    started: float,
) -> int:
    """The code of exit.json. Errors are said here: leaving the process group may have to wait for the other ranks."""
    try:
        begun = begin(config, ctx, data)
    except UserError as error:
        if ctx.rank == 0:  # the others have met the same
            sys.stderr.write(f"{error}\n")
        return EXIT_BAD_INPUT
    try:
        return run_to_end(begun, store, requests, last_word, started)
    except UserError as error:
        sys.stderr.write(f"{f'[rank {ctx.rank}] ' if ctx.grid.world_size > 1 else ''}{error}\n")
        return EXIT_BAD_INPUT
    except FaultError as error:
        if ctx.rank == 0:  # all have judged alike
            sys.stderr.write(f"{error}\n")
        return error.exit_code
