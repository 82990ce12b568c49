# SPDX-License-Identifier: Apache-2.0
"""Rules about the update: schedules counted in one unit, rates in order, one precision."""

from collections.abc import Iterator

from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _schedule_units(config: RunConfig, world: int) -> Iterator[str]:
    optim, training = config.optim, config.training
    if training.train_samples is None:
        wrong = ("lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples")
        length, unit = "--train-iters", "iters"
    else:
        wrong = ("lr_decay_iters", "lr_warmup_iters", "lr_wsd_decay_iters")
        length, unit = "--train-samples", "samples"
    for name in wrong:
        if getattr(optim, name):
            flag = f"--{name.replace('_', '-')}"
            yield f"{flag} does not go with {length}: use {flag.rsplit('-', 1)[0]}-{unit}"


def _warmup(config: RunConfig, world: int) -> Iterator[str]:
    optim, training = config.optim, config.training
    given = [
        f"--{name.replace('_', '-')} {getattr(optim, name)}"
        for name in ("lr_warmup_fraction", "lr_warmup_iters", "lr_warmup_samples")
        if getattr(optim, name)
    ]
    if len(given) > 1:
        yield f"{' and '.join(given)} exclude each other: choose one"
    if training.train_samples is None:
        decay, warmup = optim.lr_decay_iters or training.train_iters, optim.lr_warmup_iters
        wsd, unit = optim.lr_wsd_decay_iters, "iters"
    else:
        decay, warmup = optim.lr_decay_samples or training.train_samples, optim.lr_warmup_samples
        wsd, unit = optim.lr_wsd_decay_samples, "samples"
    if decay is None:
        return  # _length says so
    if warmup > decay:
        yield f"--lr-warmup-{unit} {warmup} is longer than the decay, {decay} {unit}: set --lr-decay-{unit} or less"
    if optim.lr_decay_style == "WSD" and wsd is None:
        yield f"--lr-decay-style WSD needs --lr-wsd-decay-{unit}"
    if optim.lr_decay_style == "WSD" and wsd is not None and wsd > decay:
        yield f"--lr-wsd-decay-{unit} {wsd} is longer than the whole schedule, {decay} {unit}"


def _rates(config: RunConfig, world: int) -> Iterator[str]:
    optim = config.optim
    for name, value in (("min-lr", optim.min_lr), ("lr-warmup-init", optim.lr_warmup_init)):
        if value > optim.lr:
            yield f"--{name} {value} is above --lr {optim.lr}: lower it"


def _weight_decay(config: RunConfig, world: int) -> Iterator[str]:
    optim = config.optim
    start, end = optim.start_weight_decay, optim.end_weight_decay
    if optim.weight_decay_incr_style == "constant":
        if {start, end} - {None, optim.weight_decay}:
            yield "--start-weight-decay and --end-weight-decay need --weight-decay-incr-style linear or cosine"
    elif start is None or end is None:
        yield (
            f"--weight-decay-incr-style {optim.weight_decay_incr_style} needs --start-weight-decay and "
            "--end-weight-decay"
        )


def _precision(config: RunConfig, world: int) -> Iterator[str]:
    optim = config.optim
    given = [f"--{name}" for name in ("fp16", "bf16", "fp64") if getattr(optim, name)]
    if len(given) > 1:
        yield f"{' and '.join(given)} exclude each other: choose one precision"
    if optim.fp16 and optim.loss_scale is None and optim.min_loss_scale > optim.initial_loss_scale:
        yield f"--min-loss-scale {optim.min_loss_scale} is above --initial-loss-scale {optim.initial_loss_scale}"


def _offload(config: RunConfig, world: int) -> Iterator[str]:
    optim = config.optim
    if optim.optimizer_offload_directory is not None and not optim.optimizer_cpu_offload:
        yield f"--optimizer-offload-directory {optim.optimizer_offload_directory} needs --optimizer-cpu-offload"
    if optim.offload_gradients != "auto" and not optim.optimizer_cpu_offload:
        yield f"--offload-gradients {optim.offload_gradients} needs --optimizer-cpu-offload"
    start, length = optim.optimizer_delayed_update_start, config.training.train_iters
    if start is not None and not optim.optimizer_cpu_offload:
        yield f"--optimizer-delayed-update-start {start} needs --optimizer-cpu-offload: it is the host that is late"
    if start is not None and length is not None and start >= length:
        yield (
            f"--optimizer-delayed-update-start {start} is not before the end of the run, so that no update would be "
            f"late: set less than --train-iters {length}, or leave it out"
        )
    if optim.optimizer_cpu_offload and optim.optimizer == "onebit-adam":
        yield "--optimizer onebit-adam exchanges its momentum on the device: drop --optimizer-cpu-offload"


def _onebit(config: RunConfig, world: int) -> Iterator[str]:
    optim, length = config.optim, config.training.train_iters
    freeze = optim.onebit_freeze_step
    if optim.optimizer != "onebit-adam":
        if freeze is not None:
            yield f"--onebit-freeze-step {freeze} needs --optimizer onebit-adam"
        return
    if config.parallel.use_distributed_optimizer:
        yield (
            "--optimizer onebit-adam with --use-distributed-optimizer would still gather 16-bit weights every step and "
            "save at most 1.9 x of the traffic instead of 16 x: leave one of them out"
        )
    advice = "" if length is None else f" ({max(length // 5, 1)} of --train-iters {length})"
    if freeze is None:
        yield f"--optimizer onebit-adam needs --onebit-freeze-step: 15 to 25 % of the run's updates{advice}"
    elif length is not None and freeze >= length:
        yield (
            f"--onebit-freeze-step {freeze} is not before the end of the run, so that nothing would be compressed: set "
            f"15 to 25 % of its updates{advice}, or --optimizer adam"
        )


RULES = (
    Rule(_schedule_units, "train_iters train_samples"),
    Rule(_warmup, "train_iters train_samples lr_decay_iters lr_decay_samples lr_warmup_fraction"),
    Rule(_rates, "lr min_lr lr_warmup_init"),
    Rule(_weight_decay, "weight_decay start_weight_decay end_weight_decay"),
    Rule(_precision, "loss_scale min_loss_scale initial_loss_scale"),
    Rule(_offload, "train_iters optimizer_delayed_update_start"),
    Rule(_onebit, "train_iters onebit_freeze_step"),
)
