# SPDX-License-Identifier: Apache-2.0
"""Rules about the run: batch sizes over the data-parallel ranks, its length, the profiled steps."""

from collections.abc import Iterator

from megatron_core.config.batch_steps import parse_batch_steps
from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _batches(config: RunConfig, world: int) -> Iterator[str]:
    training, dp = config.training, config.data_parallel_size(world)
    if dp < 1 or config.parallel.model_parallel_size * dp != world:
        return  # the layout's rule says so
    unit = training.micro_batch_size * dp
    batch = training.global_batch_size or unit
    step = f"--micro-batch-size {training.micro_batch_size} x {dp} data-parallel ranks = {unit}"
    if batch % unit:
        below = batch // unit * unit
        choice = f"{below} or {below + unit}" if below else f"{unit}"
        yield f"--global-batch-size {batch} is not a multiple of {step}: set {choice}"
    if training.rampup_batch_size is None:
        return
    start, increment, _ = training.rampup_batch_size
    if start < 1 or start % unit:
        yield f"--rampup-batch-size starts at {start}, which is not a positive multiple of {step}"
    elif increment < 1 or increment % unit:
        yield f"--rampup-batch-size grows by {increment}, which is not a positive multiple of {step}"
    elif start > batch:
        yield f"--rampup-batch-size starts at {start}, above --global-batch-size {batch}"
    elif (batch - start) % increment:
        yield f"--rampup-batch-size cannot grow from {start} to --global-batch-size {batch} by steps of {increment}"


def _batch_steps(config: RunConfig, world: int) -> Iterator[str]:
    training, unit = config.training, config.training.micro_batch_size * config.data_parallel_size(world)
    text = training.step_batch_size_schedule
    if text is None:
        return
    if training.rampup_batch_size is not None:
        yield "--step-batch-size-schedule and --rampup-batch-size exclude each other: choose one"
    if training.train_samples is None:
        yield "--step-batch-size-schedule needs the run's length in --train-samples, not --train-iters"
    try:
        sizes = [size for _, size in parse_batch_steps(text)]
    except ValueError as error:
        yield f"--step-batch-size-schedule {text!r}: {error}"
        return
    if training.global_batch_size not in (None, max(sizes)):
        given = training.global_batch_size
        yield f"--global-batch-size {given} is not the schedule's largest, {max(sizes)}: leave it out"
    uneven = [str(size) for size in sizes if unit and size % unit]
    if uneven:
        yield f"--step-batch-size-schedule: {', '.join(uneven)} are not multiples of micro-batch-size x dp = {unit}"


def _eval_tasks(config: RunConfig, world: int) -> Iterator[str]:
    training = config.training
    for item in training.eval_tasks:
        name, _, file = item.partition("=")
        if not name or not file:
            yield f"--eval-tasks takes NAME=FILE, not {item!r}"
    if training.eval_tasks_limit is not None and not training.eval_tasks:
        yield f"--eval-tasks-limit {training.eval_tasks_limit} has no effect without --eval-tasks: leave it out"


def _length(config: RunConfig, world: int) -> Iterator[str]:
    iters, samples = config.training.train_iters, config.training.train_samples
    if iters is None and samples is None:
        yield "--train-iters or --train-samples is required"
    elif iters is not None and samples is not None:
        yield f"--train-iters {iters} and --train-samples {samples} exclude each other: choose one"


def _first_step(config: RunConfig, world: int) -> Iterator[str]:
    training = config.training
    first = training.global_batch_size or training.micro_batch_size * config.data_parallel_size(world)
    if training.rampup_batch_size is not None:
        first = training.rampup_batch_size[0]
    if training.step_batch_size_schedule is None and 0 < (training.train_samples or 0) < first:
        yield f"--train-samples {training.train_samples} is less than the first batch, {first}: no step would be taken"


def _profile(config: RunConfig, world: int) -> Iterator[str]:
    training = config.training
    if not training.profile:
        return
    if training.profile_step_end <= training.profile_step_start:
        yield (
            f"--profile-step-end {training.profile_step_end} must be after "
            f"--profile-step-start {training.profile_step_start}"
        )
    absent = [str(rank) for rank in training.profile_ranks if rank >= world]
    if absent:
        yield f"--profile-ranks {' '.join(absent)}: the world has {world} ranks, 0 to {world - 1}"


RULES = (
    Rule(
        _batches,
        "micro_batch_size global_batch_size rampup_batch_size tensor_model_parallel_size pipeline_model_parallel_size "
        "context_parallel_size",
    ),
    Rule(
        _batch_steps,
        "micro_batch_size global_batch_size rampup_batch_size tensor_model_parallel_size pipeline_model_parallel_size "
        "context_parallel_size",
    ),
    Rule(_eval_tasks, "eval_tasks_limit"),
    Rule(_length, "train_iters train_samples"),
    Rule(
        _first_step,
        "train_iters train_samples micro_batch_size global_batch_size rampup_batch_size tensor_model_parallel_size "
        "pipeline_model_parallel_size context_parallel_size",
    ),
    Rule(_profile, "profile_step_start profile_step_end profile_ranks"),
)
