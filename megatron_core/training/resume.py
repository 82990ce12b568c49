# SPDX-License-Identifier: Apache-2.0
"""Where a run starts: at step 0, or from a checkpoint with its state, its seed and, where asked for, its schedule.

start = choose_start(config, ctx)                  before anything is built: it may change the config
run = build_run(start.config, ...)
state = load_start(start, run.reducer.buckets, run.optimizer, ctx)
state = roll_back(start, ...)                      any number of times later, after a fault
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megatron_core.checkpoint.agree import from_rank_0
from megatron_core.checkpoint.choose import LOGGER, Chosen, Source, choose
from megatron_core.checkpoint.find import find_newest, find_step
from megatron_core.checkpoint.held_errors import held_with_errors
from megatron_core.checkpoint.load import load_tensors
from megatron_core.checkpoint.saved_config import config_from_json
from megatron_core.config.checkpoint import CheckpointConfig
from megatron_core.config.run import RunConfig
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.errors import CheckpointError
from megatron_core.optim.loss_scaler import initial
from megatron_core.optim.optimizer import Optimizer
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.checkpoint_config import model_arguments, reconcile
from megatron_core.training.save_conflict import check_save_conflict, is_own
from megatron_core.training.state import RunState
from megatron_core.training.state_json import seed_of, state_from_json


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run starts, the same on every rank."""

    config: RunConfig
    """The run's, with what it takes from the checkpoint."""
    state: RunState
    chosen: Chosen | None
    """None: from initial weights."""


def choose_start(config: RunConfig, ctx: ParallelContext) -> Start:
    """Look where --load says and agree on the start; says aloud what is found. All ranks must call.

    Raises CheckpointError where what is there cannot be used, ConfigError where the run must not go on from it or
    would mix its checkpoints with others in --save; the same on every rank.
    """
    checkpoint = config.checkpoint
    chosen = None if checkpoint.load is None else choose(_source(checkpoint, checkpoint.load), ctx)
    goes_on_from = None if chosen is None or checkpoint.finetune else chosen.step
    from_rank_0(lambda: _check_save(checkpoint, goes_on_from), ctx)
    if chosen is None:
        _say_new(checkpoint, ctx)
        return Start(config=config, state=RunState(loss_scale=initial(config.optim)), chosen=None)
    reconciled = reconcile(
        config,
        config_from_json(chosen.manifest.config),
        step=chosen.step,
        seed=seed_of(chosen.manifest.state),
    )
    if ctx.rank == 0:
        for warning in reconciled.warnings:
            LOGGER.warning(warning)
        if reconciled.layout is not None:
            LOGGER.info(reconciled.layout)
    return Start(config=reconciled.config, state=_state(chosen, reconciled.config), chosen=chosen)


def load_start(start: Start, buckets: Sequence[FlatBucket], optimizer: Optimizer, ctx: ParallelContext) -> RunState:
    """Fill weights and optimizer; the state to go on from, an older one than `start.state` after a fall-back.

    All ranks must call. Raises CheckpointError on every rank.
    """
    if start.chosen is None:
        return start.state
    return _load(start.chosen, start.config, buckets, optimizer, ctx)


def roll_back(start: Start, buckets: Sequence[FlatBucket], optimizer: Optimizer, ctx: ParallelContext) -> RunState:
    """Go back to the newest checkpoint that the run has saved; where there is none, to the one it started from.

    No save may be in flight. All ranks must call. Raises CheckpointError on every rank where there is nothing.
    """
    save = start.config.checkpoint.save
    saved = None if save is None else choose(Source(root=Path(save), own=True), ctx)
    if saved is not None:
        # Its own, so all of it counts, whatever the run took of the one that it started from.
        checkpoint = replace(start.config.checkpoint, finetune=False, load_optim=True)
        return _load(saved, replace(start.config, checkpoint=checkpoint), buckets, optimizer, ctx)
    if start.chosen is None:
        raise CheckpointError(f"nothing to roll back to: {save or 'no --save directory'} holds no checkpoint yet")
    return load_start(start, buckets, optimizer, ctx)


def checkpoint_model_args(load: str, ckpt_step: int | None) -> dict[str, object]:
    """The fields of the section model for --use-checkpoint-args, before any process group exists.

    Empty where there is no checkpoint. Raises CheckpointError where none is usable.
    """
    found = find_newest(Path(load), own=True) if ckpt_step is None else find_step(Path(load), ckpt_step)
    return {} if found.manifest is None else model_arguments(config_from_json(found.manifest.config))


def _source(checkpoint: CheckpointConfig, load: str) -> Source:
    return Source(root=Path(load), step=checkpoint.ckpt_step, own=is_own(checkpoint))


def _check_save(checkpoint: CheckpointConfig, goes_on_from: int | None) -> bytes:
    check_save_conflict(checkpoint, goes_on_from)
    return b""


def _say_new(checkpoint: CheckpointConfig, ctx: ParallelContext) -> None:
    if checkpoint.load is None:
        return
    if checkpoint.exit_on_missing_checkpoint:
        raise CheckpointError(
            f"--load {checkpoint.load} holds no checkpoint, and --exit-on-missing-checkpoint is given"
        )
    if ctx.rank == 0:
        LOGGER.info("--load %s holds no checkpoint: starting new", checkpoint.load)


def _with_optim(checkpoint: CheckpointConfig) -> bool:
    return checkpoint.load_optim and not checkpoint.finetune


def _state(chosen: Chosen, config: RunConfig) -> RunState:
    if config.checkpoint.finetune:
        return RunState(loss_scale=initial(config.optim))
    return state_from_json(chosen.manifest.state, config, with_optim=_with_optim(config.checkpoint))


def _load(
    chosen: Chosen,
    config: RunConfig,
    buckets: Sequence[FlatBucket],
    optimizer: Optimizer,
    ctx: ParallelContext,
) -> RunState:
    """Fill what `config` takes of a checkpoint and start the rest anew; the state that belongs to it."""
    with_optim = _with_optim(config.checkpoint)
    held = held_with_errors(buckets, optimizer, with_optim=with_optim)
    loaded = load_tensors(chosen, held, ctx, with_optim=with_optim)
    if not with_optim:
        optimizer.start_anew()
    what = "weights, optimizer and state" if with_optim else "weights"
    if ctx.rank == 0:
        LOGGER.info("loaded %s from %s", what, loaded.directory)
    return _state(loaded, config)
