# SPDX-License-Identifier: Apache-2.0
"""When a run saves, what becomes of a save that failed, and the way back to the last one.

A checkpoint is due every --save-interval steps and where the run ends, for whatever reason, but never twice at one
step. In between, saves are written behind training; the last one is waited for.
"""

import logging
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist

from megatron_core.checkpoint.agree import from_rank_0
from megatron_core.checkpoint.directory import steps_present
from megatron_core.checkpoint.held import Held
from megatron_core.checkpoint.manager import CheckpointManager
from megatron_core.checkpoint.retention import Retention
from megatron_core.checkpoint.saved_config import config_to_json
from megatron_core.errors import CheckpointError
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.build import Run, rewound
from megatron_core.training.console import LOGGER_NAME
from megatron_core.training.faults import FaultError
from megatron_core.training.resume import Start, roll_back
from megatron_core.training.state import RunState
from megatron_core.training.state_json import state_to_json
from megatron_core.training.stop import StopRequests

LOGGER = logging.getLogger(LOGGER_NAME)


class Saver:
    """The checkpoints of one run; every rank has one and calls its methods together. Without --save it does nothing."""

    def __init__(
        self, start: Start, state: RunState, ctx: ParallelContext, store: dist.Store, requests: StopRequests
    ) -> None:
        """`state`: what was loaded. `requests`: told of a failed save where the run shall not go on without."""
        self._start, self._ctx, self._requests = start, ctx, requests
        self._config = start.config.checkpoint
        self._manager: CheckpointManager | None = None
        self._first_step: int | None = None
        if self._config.save is None:
            return
        root = Path(self._config.save)
        if start.chosen is not None and start.chosen.source.own:
            self._first_step = state.step
        self._saved_step = self._first_step
        self._manager = CheckpointManager(
            root,
            ctx,
            store,
            retention=Retention(keep_last=self._config.keep_last, interval=self._config.save_retain_interval),
            # Newer ones than the run goes on from were found damaged: no other start is let through.
            damaged=[step for step in steps_present(root) if step > state.step] if ctx.rank == 0 else (),
        )

    @property
    def checkpoint_step(self) -> int | None:
        """The newest step that a later run can start from; on rank 0."""
        published = None if self._manager is None else self._manager.last_published
        return self._first_step if published is None else published

    def reserve(self, run: Run, state: RunState) -> None:
        """Get memory for the copies that saves behind training are written from."""
        if self._manager is not None and self._config.async_save and self._config.save_interval:
            self._manager.reserve(self._held(run, state))

    def poll(self) -> None:
        """Say aloud which save behind training failed, and have the run stopped where it shall not go on."""
        failure = None if self._manager is None else self._manager.take_failure()
        if failure is None:
            return
        if self._config.stop_on_save_failure:
            self._requests.save_failed = True
            LOGGER.error("%s", failure)
        else:
            LOGGER.error("%s; training goes on, and the checkpoints before are still there", failure)

    def after_step(self, run: Run, state: RunState) -> bool:
        """Save where a checkpoint is due; whether one was."""
        interval = self._config.save_interval
        if self._manager is None or not interval or state.step % interval or state.step == self._saved_step:
            return False
        if self._config.async_save:
            self._save(self._manager, run, state, wait=False)
            self._saved_step = state.step
        elif not self._save_now(self._manager, run, state):
            self._requests.save_failed = self._config.stop_on_save_failure
        return True

    def last(self, run: Run, state: RunState) -> bool:
        """Make sure that there is a checkpoint of the last step; False where that failed, or without --save."""
        if self._manager is None:
            return False
        self.finish()
        # What rank 0 knows: the other ranks have not heard whether a save behind training was published.
        done = from_rank_0(lambda: str(self.checkpoint_step).encode(), self._ctx)
        return done.decode() == str(state.step) or self._save_now(self._manager, run, state)

    def finish(self) -> None:
        """Wait for a save behind training, and say so where it failed."""
        if self._manager is not None:
            self._manager.close()
            self.poll()

    def roll_back(self, run: Run, state: RunState, reason: str) -> tuple[Run, RunState]:
        """The run at its newest checkpoint, and its state, in which the step after `state` is to be passed over.

        Raises FaultError where there is no checkpoint.
        """
        self.finish()
        run.weight_gather.finish()  # what is loaded must not be overtaken by weights that are still on their way
        try:
            older = roll_back(self._start, run.reducer.buckets, run.optimizer, run.ctx)
        except CheckpointError as error:
            raise FaultError(f"{reason} But {error}.") from error
        # Those of `state` too: an earlier roll-back may have gone to the very same checkpoint.
        skipped = tuple(sorted({*older.skipped_steps, *state.skipped_steps, state.step + 1}))
        older = replace(older, skipped_steps=skipped, elapsed_s=state.elapsed_s)
        self._saved_step = older.step
        return rewound(run, older), older

    def _save_now(self, manager: CheckpointManager, run: Run, state: RunState) -> bool:
        try:
            self._save(manager, run, state, wait=True)
        except CheckpointError as error:
            if self._ctx.rank == 0:
                LOGGER.error("%s", error)
            return False
        self._saved_step = state.step
        return True

    def _save(self, manager: CheckpointManager, run: Run, state: RunState, *, wait: bool) -> None:
        manager.save(
            state.step,
            self._held(run, state),
            state=state_to_json(state, run.config),
            # As it was given: the run's own has the vocabulary that the tokenizer made of --vocab-size.
            config=config_to_json(self._start.config),
            wait=wait,
        )

    def _held(self, run: Run, state: RunState) -> list[Held]:
        return run.held(with_optim=self._config.save_optim, applied_steps=state.applied.steps)

    def abandon(self) -> None:
        """After an error: leave a save in flight as it is, since other ranks may be gone."""
        if self._manager is not None:
            self._manager.abandon()
