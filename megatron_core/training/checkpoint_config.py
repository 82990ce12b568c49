# SPDX-License-Identifier: Apache-2.0
"""The configuration in a checkpoint against that of the run which goes on from it.

A model that is another function, or an optimizer that would go on under another schedule, is an error that lists every
difference; data and batch may change, but never silently (DAT-04). Pure.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from megatron_core.config.fields import Field, all_fields, replace_fields
from megatron_core.config.run import RunConfig
from megatron_core.errors import ConfigError
from megatron_core.training.config_fields import ARCHITECTURE, RECIPE, SCHEDULE, SHAPES


@dataclass(frozen=True, kw_only=True)
class Reconciled:
    """What a run goes on with."""

    config: RunConfig
    warnings: tuple[str, ...]
    """What is different from the checkpoint and changes the numbers, a line each, to be said aloud."""
    layout: str | None
    """From which layout and precision to which, where they changed."""


def reconcile(config: RunConfig, saved: RunConfig, *, step: int, seed: int) -> Reconciled:
    """The config to go on with from the checkpoint of `step`, which was saved under `saved` with that seed.

    Raises ConfigError with all differences that must not be.
    """
    checkpoint = config.checkpoint
    notes: list[str] = []
    problems: list[str] = []
    model = _differences(config, saved, _architecture(config, saved))
    schedule = _differences(config, saved, _schedule(config, saved))
    if model and checkpoint.finetune:
        notes += model
    elif model:
        problems.append(_listed("was trained as another model", model, _MODEL_REMEDY))
    if checkpoint.use_checkpoint_opt_param_scheduler:
        notes += [f"{line}; the checkpoint's counts" for line in schedule]
        config = _with_schedule_of(saved, config)
    elif checkpoint.override_opt_param_scheduler:
        notes += [f"{line}; this run's counts" for line in schedule]
    elif schedule and checkpoint.load_optim and not checkpoint.finetune:
        problems.append(_listed("was trained under another schedule", schedule, _schedule_remedy(config, saved)))
    if frozen := _other_freeze(config, saved, step):
        problems.append(frozen)
    if problems:
        raise ConfigError("\n".join(f"the checkpoint of step {step} {problem}" for problem in problems))
    if not checkpoint.finetune:
        notes += _differences(config, saved, RECIPE)
    if checkpoint.load_rng and not checkpoint.finetune and seed != config.training.seed:
        notes.append(f"seed: {seed} as in the checkpoint, not {config.training.seed}; --no-load-rng takes this run's")
        config = dataclasses.replace(config, training=dataclasses.replace(config.training, seed=seed))
    return Reconciled(config=config, warnings=tuple(notes), layout=_layout_note(config, saved))


def model_arguments(saved: RunConfig) -> dict[str, object]:
    """Fields of the section model that --use-checkpoint-args takes from a checkpoint, with their values.

    Not the vocabulary where the tokenizer said it: this run may have to give its size to another kind.
    """
    names = ARCHITECTURE | SHAPES | {"seq_length", "hidden_dropout", "attention_dropout"}
    names -= {"vocab_size"} if saved.model.vocab_size is None else set()
    return {field.name: _value(saved, field) for field in _fields(names)}


def _fields(names: Collection[str]) -> list[Field]:
    return [field for field in all_fields() if field.name in names]


def _value(config: RunConfig, field: Field) -> object:
    return getattr(getattr(config, field.section), field.name)


def _differences(config: RunConfig, saved: RunConfig, names: Collection[str]) -> list[str]:
    """A line for each of these fields whose values differ."""
    return [
        f"{field.name}: {_shown(_value(saved, field))} in the checkpoint, {_shown(_value(config, field))} in this run"
        for field in _fields(names)
        if _value(saved, field) != _value(config, field)
    ]


def _shown(value: object) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _architecture(config: RunConfig, saved: RunConfig) -> Collection[str]:
    """Fields that make another function; a vocabulary that only the tokenizer knows is compared by the tensors."""
    known = config.model.vocab_size is not None and saved.model.vocab_size is not None
    return ARCHITECTURE if known else ARCHITECTURE - {"vocab_size"}


def _schedule(config: RunConfig, saved: RunConfig) -> Collection[str]:
    """Fields that make another schedule, where they have a say."""
    names = SCHEDULE
    optims = (config.optim, saved.optim)
    if all(optim.lr_decay_style == "constant" and optim.lr_warmup_fraction is None for optim in optims):
        names -= {"lr_decay_iters", "lr_decay_samples"}
    if any(optim.weight_decay_incr_style != "constant" for optim in optims):
        names |= {"train_iters", "train_samples"}  # the ramp ends where the run does
    return names


def _with_schedule_of(saved: RunConfig, config: RunConfig) -> RunConfig:
    if (saved.training.train_samples is None) != (config.training.train_samples is None):
        raise ConfigError(
            "--use-checkpoint-opt-param-scheduler: one of checkpoint and run counts in --train-iters, the other in "
            "--train-samples; give the length as the checkpoint did, or use --override-opt-param-scheduler"
        )
    return replace_fields(config, {field: _value(saved, field) for field in _fields(SCHEDULE)})


_MODEL_REMEDY = "give the checkpoint's values (--use-checkpoint-args takes them), or load weights alone with --finetune"


def _schedule_remedy(config: RunConfig, saved: RunConfig) -> str:
    """What to set; a decay length is mostly derived from the run's length, which is what was really changed."""
    both = (
        "--override-opt-param-scheduler takes this run's values, --use-checkpoint-opt-param-scheduler the checkpoint's"
    )
    for name in ("lr_decay_iters", "lr_decay_samples"):
        own, old = getattr(config.optim, name), getattr(saved.optim, name)
        length = name.replace("lr_decay", "train")
        if old != own and own == getattr(config.training, length) and old is not None:
            flags = f"--{length} {own} without --{name}".replace("_", "-")
            return f"{both}; {flags} stretches the decay to the new end, --{name.replace('_', '-')} {old} keeps it"
    return both


def _other_freeze(config: RunConfig, saved: RunConfig, step: int) -> str | None:
    """What is wrong where one of both had, or would have had, its variance frozen by now and not at the same update."""
    freezes = [c.optim.onebit_freeze_step for c in (saved, config)]  # None with AdamW
    passed = any(freeze is not None and freeze < step for freeze in freezes)
    if freezes[0] == freezes[1] or not passed or not config.checkpoint.load_optim or config.checkpoint.finetune:
        return None
    before, now = ("AdamW" if freeze is None else f"1-bit Adam frozen at {freeze}" for freeze in freezes)
    return (
        f"was trained by {before}, this run by {now}, and its variance is past one of both: keep --optimizer and "
        "--onebit-freeze-step, or start a new optimizer with --no-load-optim"
    )


def _listed(what: str, lines: list[str], remedy: str) -> str:
    if len(lines) == 1:
        return f"{what}: {lines[0]}. Remedy: {remedy}."
    return "\n  ".join([f"{what}: {len(lines)} fields differ:", *lines, f"Remedy: {remedy}."])


def _layout_note(config: RunConfig, saved: RunConfig) -> str | None:
    before, now = _layout(saved), _layout(config)
    return None if before == now else f"saved in {before}, goes on in {now}"


def _layout(config: RunConfig) -> str:
    parallel = config.parallel
    return (
        f"{config.optim.precision} at tp {parallel.tensor_model_parallel_size} x pp "
        f"{parallel.pipeline_model_parallel_size}"
    )
