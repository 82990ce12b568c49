# SPDX-License-Identifier: Apache-2.0
"""One rank's run from its first step to its exit.json, once all ranks have met."""

import dataclasses
import logging
import time
from pathlib import Path

import torch.distributed as dist

from megatron_core.config.run import RunConfig
from megatron_core.errors import UserError
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.batch_schedule import batch_schedule, run_length
from megatron_core.training.build import Run, build_run, rewound
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.describe import describe
from megatron_core.training.exit_file import remove_exit_file, write_exit_file
from megatron_core.training.faults import FaultError
from megatron_core.training.loop import Ending, train, validate_at_end
from megatron_core.training.metrics import METRICS_FILE
from megatron_core.training.profile import ProfileWindow
from megatron_core.training.report import Report
from megatron_core.training.resume import Start, choose_start, load_start
from megatron_core.training.run_data import RunData, open_data
from megatron_core.training.saver import Saver
from megatron_core.training.state import RunState
from megatron_core.training.stop import EXIT_DONE, EXIT_OTHER, StopRequests

EXIT_BAD_INPUT = 2
LOGGER = logging.getLogger(LOGGER_NAME)


@dataclasses.dataclass(frozen=True)
class Begun:
    """A run that is ready for its next step."""

    start: Start
    run: Run
    state: RunState


def begin(config: RunConfig, ctx: ParallelContext, data: RunData) -> Begun:
    """Build the run and load what it goes on from. Raises UserError, the same on every rank."""
    start = choose_start(config, ctx)
    if start.config.training.seed != config.training.seed:
        data = open_data(start.config)  # the seed of the checkpoint orders the samples
    run = build_run(start.config, ctx, data, start.state)
    state = load_start(start, run.reducer.buckets, run.optimizer, ctx)
    if state.consumed_samples != start.state.consumed_samples:
        run = rewound(run, state)  # an older checkpoint had to be taken than the one chosen first
    return Begun(start, run, state)


def run_to_end(begun: Begun, store: dist.Store, requests: StopRequests, started: float) -> int:
    """Train, save and validate to the end of the run or to a stop; the code of exit.json, which every ending leaves.

    `store`: shared by all ranks, for their threads. `started`: time.monotonic() when the process began.
    """
    run, state, ctx = begun.run, begun.state, begun.run.ctx
    config = run.config
    _clear_the_way(config, ctx, resumes=begun.start.chosen is not None)
    profile = ProfileWindow(config.training, config.checkpoint.save, ctx.rank, cuda=ctx.device.type == "cuda")
    report = open_report(config, ctx)
    saver = Saver(begun.start, state, ctx, store, requests)
    try:
        describe(run, time.monotonic() - started)
        saver.reserve(run)
        ending = train(run, state, saver, report, profile, requests)
        # The checkpoint first: a job that is out of time may be killed while it validates.
        saved = saver.last(ending.run, ending.state)
        ending = validate_at_end(ending, report, requests)
        ending.run.source.close()
    except BaseException as error:
        if isinstance(error, FaultError):
            saver.finish()  # all ranks are well and raise it together: what is being written need not be lost
        else:
            saver.abandon()
        code = EXIT_BAD_INPUT if isinstance(error, UserError) else EXIT_OTHER
        _write_exit(config, ctx, saver, code, f"{type(error).__name__}: {error}", max(report.last_step, state.step))
        raise
    finally:
        profile.close()
        report.close()
    code, reason = _verdict(ending, saved=saved, saves=config.checkpoint.save is not None)
    LOGGER.info("stopped after step %d: %s", ending.state.step, reason)
    _write_exit(ending.run.config, ctx, saver, code, reason, ending.state.step)
    return code


def open_report(config: RunConfig, ctx: ParallelContext) -> Report:
    """The run's report; rank 0 opens its files."""
    return Report(
        config.logging,
        run_length(config.training, batch_schedule(config.training, config.model.seq_length)),
        save=config.checkpoint.save,
        rank=ctx.rank,
        world_size=ctx.grid.world_size,
        run_config=dataclasses.asdict(config),
    )


def _clear_the_way(config: RunConfig, ctx: ParallelContext, *, resumes: bool) -> None:
    if ctx.rank != 0 or config.checkpoint.save is None:
        return
    folder = Path(config.checkpoint.save)
    if (folder / METRICS_FILE).exists() and not resumes:
        LOGGER.info("%s holds an earlier run: this one appends to its metrics", folder)
    remove_exit_file(folder)


def _verdict(ending: Ending, *, saved: bool, saves: bool) -> tuple[int, str]:
    """Exit code and reason."""
    if saves and not saved:
        return EXIT_OTHER, f"{ending.reason}, but the last checkpoint was not saved"
    return EXIT_DONE if ending.stop is None else ending.stop.exit_code(saved=saved), ending.reason


def _write_exit(config: RunConfig, ctx: ParallelContext, saver: Saver, code: int, reason: str, step: int) -> None:
    if ctx.rank == 0 and config.checkpoint.save is not None:
        folder = Path(config.checkpoint.save)
        write_exit_file(folder, code=code, reason=reason, step=step, checkpoint_step=saver.checkpoint_step)
