# SPDX-License-Identifier: Apache-2.0
"""From a command line to an exit code: the story of a run in one place."""

import dataclasses
import json
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from megatron_core.checkpoint.final_weights import save_final_weights
from megatron_core.config.cli import Parsed, parse
from megatron_core.config.run import RunConfig
from megatron_core.config.yaml_file import dump_yaml
from megatron_core.errors import UserError
from megatron_core.parallel.context import ParallelContext
from megatron_core.parallel.groups import create_context
from megatron_core.parallel.rank_grid import DEFAULT_ORDER, TP_PP_DP_ORDER, RankGrid
from megatron_core.training.batch_schedule import batch_schedule, run_length
from megatron_core.training.build import Run, build_run, initial_state
from megatron_core.training.console import set_up_console
from megatron_core.training.describe import describe
from megatron_core.training.launch import Launch, choose_device, detect, process_group
from megatron_core.training.loop import Ending, train, validate_at_end
from megatron_core.training.metrics import METRICS_FILE
from megatron_core.training.profile import ProfileWindow
from megatron_core.training.report import Report
from megatron_core.training.run_data import RunData, open_data
from megatron_core.training.save_directory import check_save_directory
from megatron_core.training.trackers import check_trackers

EXIT_OTHER, EXIT_BAD_INPUT = 1, 2
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
        parsed = parse(argv, launch.world_size if launch.launcher != "alone" else None)
        if parsed.print_config:
            if local_rank == 0:
                sys.stdout.write(dump_yaml(parsed.config))
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


def grid_of(config: RunConfig, world_size: int) -> RankGrid:
    """The mesh that a resolved config asks for."""
    parallel = config.parallel
    return RankGrid(
        tp=parallel.tensor_model_parallel_size,
        cp=parallel.context_parallel_size,
        dp=config.data_parallel_size(world_size),
        pp=parallel.pipeline_model_parallel_size,
        order=TP_PP_DP_ORDER if parallel.use_tp_pp_dp_mapping else DEFAULT_ORDER,
    )


def kv_replicas(config: RunConfig) -> int:
    """How many neighbours on tp hold the same key/value heads."""
    return max(config.parallel.tensor_model_parallel_size // config.model.query_groups, 1)


def _run_rank(parsed: Parsed, launch: Launch, started: float) -> int:
    config = parsed.config
    set_up_console(launch.rank)
    for note in parsed.notes:
        LOGGER.info(note)
    grid = grid_of(config, launch.world_size)
    check_save_directory(config.checkpoint.save)
    check_trackers(config.logging)
    device = choose_device(launch, config.parallel)
    data = open_data(config)
    profile = ProfileWindow(config.training, config.checkpoint.save, launch.rank, cuda=device.type == "cuda")
    timeout = config.parallel.distributed_timeout_minutes
    with process_group(launch, device, timeout):
        ctx = create_context(grid, launch.rank, device, kv_replicas=kv_replicas(config), timeout_minutes=timeout)
        try:
            _train_and_report(config, ctx, data, profile, started)
        except UserError as error:
            # Said here and not by the caller: leaving the process group may have to wait for the other ranks.
            sys.stderr.write(f"{f'[rank {ctx.rank}] ' if launch.world_size > 1 else ''}{error}\n")
            return EXIT_BAD_INPUT
    return 0


def _train_and_report(
    config: RunConfig, ctx: ParallelContext, data: RunData, profile: ProfileWindow, started: float
) -> None:
    exit_file = None
    if ctx.rank == 0 and config.checkpoint.save is not None:
        folder = Path(config.checkpoint.save)
        if (folder / METRICS_FILE).exists():
            LOGGER.info("%s holds an earlier run: this one appends to its metrics and replaces its weights", folder)
        exit_file = folder / "exit.json"
        exit_file.unlink(missing_ok=True)  # that of an earlier run would speak for this one, should this one die
    report = _open_report(config, ctx)
    try:
        ending = _train(config, ctx, data, report, profile, started)
    finally:
        profile.close()
        report.close()
    LOGGER.info("stopped after step %d: %s", ending.state.step, ending.reason)
    if exit_file is not None:
        exit_file.write_text(json.dumps({"code": 0, "reason": ending.reason, "step": ending.state.step}) + "\n")


def _open_report(config: RunConfig, ctx: ParallelContext) -> Report:
    return Report(
        config.logging,
        run_length(config.training, batch_schedule(config.training, config.model.seq_length)),
        save=config.checkpoint.save,
        rank=ctx.rank,
        world_size=ctx.grid.world_size,
        run_config=dataclasses.asdict(config),
    )


def _train(
    config: RunConfig, ctx: ParallelContext, data: RunData, report: Report, profile: ProfileWindow, started: float
) -> Ending:
    state = initial_state(config)
    run = build_run(config, ctx, data, state)
    try:
        describe(run, time.monotonic() - started)
        ending = train(run, state, report, profile, started)
        # The weights first: a job that is out of time may be killed while it validates.
        _save(run, ending)
        validate_at_end(run, ending, report)
    finally:
        run.source.close()
    return ending


def _save(run: Run, ending: Ending) -> None:
    save = run.config.checkpoint.save
    if save is None:
        return
    path = save_final_weights(run.reducer.parameters, run.ctx, save, ending.state.step)
    if path is not None:
        LOGGER.info("weights of step %d in %s", ending.state.step, path)
