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
from megatron_core.training.exit_file import LastWord
from megatron_core.training.faults import FaultError
from megatron_core.training.loop import Ending, train, validate_at_end
from megatron_core.training.metrics import METRICS_FILE
from megatron_core.training.out_of_memory import advised_out_of_memory
from megatron_core.training.plan_check import PlanCheck
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
    with advised_out_of_memory(start.config, ctx, data.vocab_size):
        run = build_run(start.config, ctx, data, start.state)
    state = load_start(start, run.reducer.buckets, run.optimizer, ctx)
    if state.consumed_samples != start.state.consumed_samples:
        run = rewound(run, state)  # an older checkpoint had to be taken than the one chosen first
    return Begun(start, run, state)


def run_to_end(begun: Begun, store: dist.Store, requests: StopRequests, last_word: LastWord, started: float) -> int:
    """Train, save and validate to the end of the run or to a stop; the code of exit.json, which every ending leaves.

    `store`: shared by all ranks, for their threads. `started`: time.monotonic() when the process began.
    """
    run, state, ctx = begun.run, begun.state, begun.run.ctx
    config = run.config
    if ctx.rank == 0 and begun.start.chosen is None:
        _say_whose_directory(config)
    last_word.forget_earlier()
    profile = ProfileWindow(config.training, config.checkpoint.save, ctx.rank, cuda=ctx.device.type == "cuda")
    report = open_report(config, ctx)
    saver = Saver(begun.start, state, ctx, store, requests)
    last_word.where = lambda: (max(report.last_step, state.step), saver.checkpoint_step)
    try:
        describe(run, time.monotonic() - started)
        saver.reserve(run, state)
        with advised_out_of_memory(config, ctx, run.data.vocab_size):
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
        last_word.say(code, f"{type(error).__name__}: {error}")
        raise
    finally:
        profile.close()
        report.close()
    code, reason = _verdict(ending, saved=saved, saves=config.checkpoint.save is not None)
    LOGGER.info("stopped after step %d: %s", ending.state.step, reason)
    last_word.where = lambda: (ending.state.step, saver.checkpoint_step)
    last_word.say(code, reason)
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
        plan=PlanCheck(config, ctx.grid.world_size) if config.logging.plan_hardware is not None else None,
    )


def _say_whose_directory(config: RunConfig) -> None:
    save = config.checkpoint.save
    if save is not None and (Path(save) / METRICS_FILE).exists():
        LOGGER.info("%s holds an earlier run: this one appends to its metrics", save)


def _verdict(ending: Ending, *, saved: bool, saves: bool) -> tuple[int, str]:
    """Exit code and reason."""
    if saves and not saved:
        return EXIT_OTHER, f"{ending.reason}, but the last checkpoint was not saved"
    return EXIT_DONE if ending.stop is None else ending.stop.exit_code(saved=saved), ending.reason
