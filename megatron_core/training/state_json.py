# SPDX-License-Identifier: Apache-2.0
"""The run's scalars as they lie in a checkpoint, and back, with every field checked.

What is a function of others is not kept twice: learning rate, batch size, data position and curriculum follow from the
counters, dropout masks from seed and step. consumed_tokens is for whoever reads the file.
"""

from collections.abc import Mapping
from typing import Any

from megatron_core.checkpoint.json_record import Record
from megatron_core.config.optim import OptimConfig
from megatron_core.config.run import RunConfig
from megatron_core.errors import CheckpointError
from megatron_core.optim.loss_scaler import LossScale, initial
from megatron_core.optim.lr_schedule import Applied
from megatron_core.training.faults import RecentLoss
from megatron_core.training.state import RunState

_WHERE = "the run's state"
_KEYS = (
    "step",
    "applied_steps",
    "applied_samples",
    "consumed_samples",
    "consumed_tokens",
    "loss_scale",
    "recent_loss",
    "seed",
    "elapsed_s",
    "skipped_steps",
)


def state_to_json(state: RunState, config: RunConfig) -> dict[str, Any]:
    """The scalars of a run, as JSON. The loss scale is null where it has no history: in anything but dynamic fp16."""
    scale, recent = state.loss_scale, state.recent_loss
    return {
        "step": state.step,
        "applied_steps": state.applied.steps,
        "applied_samples": state.applied.samples,
        "consumed_samples": state.consumed_samples,
        "consumed_tokens": state.consumed_samples * config.model.seq_length,
        "loss_scale": {
            "scale": scale.scale,
            "clean_steps": scale.clean_steps,
            "hysteresis_left": scale.hysteresis_left,
        }
        if _is_dynamic(config.optim)
        else None,
        "recent_loss": {"mean": recent.mean, "count": recent.count, "faults": recent.faults},
        "seed": config.training.seed,
        "elapsed_s": state.elapsed_s,
        "skipped_steps": list(state.skipped_steps),
    }


def state_from_json(value: Mapping[str, Any], config: RunConfig, *, with_optim: bool) -> RunState:
    """The state of a run that goes on from a checkpoint. Raises CheckpointError that names what is not as written.

    Without `with_optim` the optimizer is new: its updates are counted from 0 and its loss scale starts as in a new run.
    That also starts anew where the checkpoint has no dynamic scale or this run uses none.
    """
    record = Record(_WHERE, value)
    record.has_exactly(*_KEYS)
    state = RunState(
        step=record.integer("step"),
        applied=Applied(record.integer("applied_steps"), record.integer("applied_samples")),
        consumed_samples=record.integer("consumed_samples"),
        loss_scale=_loss_scale(record, config.optim),
        recent_loss=_recent_loss(record),
        elapsed_s=_at_least_0(record, "elapsed_s"),
        skipped_steps=record.integers("skipped_steps"),
    )
    record.integer("consumed_tokens")
    if state.applied.steps > state.step or state.applied.samples > state.consumed_samples:
        raise CheckpointError(
            f"{_WHERE}: {state.applied.steps} updates over {state.applied.samples} samples were applied in "
            f"{state.step} steps over {state.consumed_samples} samples"
        )
    if with_optim:
        return state
    return RunState(
        step=state.step,
        consumed_samples=state.consumed_samples,
        loss_scale=initial(config.optim),
        elapsed_s=state.elapsed_s,
        skipped_steps=state.skipped_steps,
    )


def seed_of(value: Mapping[str, Any]) -> int:
    """The seed of the run that saved a state."""
    return Record(_WHERE, value).integer("seed")


def _is_dynamic(optim: OptimConfig) -> bool:
    return optim.precision == "fp16" and optim.loss_scale is None


def _loss_scale(record: Record, optim: OptimConfig) -> LossScale:
    if record.value("loss_scale") is None:
        return initial(optim)
    inner = Record(f"{_WHERE}: loss_scale", record.value("loss_scale"))
    inner.has_exactly("scale", "clean_steps", "hysteresis_left")
    saved = LossScale(
        inner.number("scale"),
        clean_steps=inner.integer("clean_steps"),
        hysteresis_left=inner.integer("hysteresis_left"),
    )
    if saved.scale <= 0:
        raise CheckpointError(f"{_WHERE}: loss_scale: scale is {saved.scale}, not above 0")
    return saved if _is_dynamic(optim) else initial(optim)


def _recent_loss(record: Record) -> RecentLoss:
    inner = Record(f"{_WHERE}: recent_loss", record.value("recent_loss"))
    inner.has_exactly("mean", "count", "faults")
    return RecentLoss(inner.number("mean"), inner.integer("count"), inner.integer("faults"))


def _at_least_0(record: Record, key: str) -> float:
    number = record.number(key)
    if number < 0:
        raise CheckpointError(f"{_WHERE}: {key} is {number}, below 0")
    return number
