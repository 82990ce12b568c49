# SPDX-License-Identifier: Apache-2.0
"""From a configuration to the microbatches of a step: tokenizer, data sets, sample numbers, loader."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megatron_core.config.data import DataConfig
from megatron_core.config.run import RunConfig
from megatron_core.data.batch import DocumentRules
from megatron_core.data.build import Datasets, build_datasets
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.loader import Loader
from megatron_core.data.sample import TrainingData, ValidationData
from megatron_core.data.sampler import StepPlan, training_step
from megatron_core.evaluation.multiple_choice import EncodedTask, encode_task, read_task
from megatron_core.evaluation.task_rows import find_tasks
from megatron_core.evaluation.text_encoder import TextEncoder
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.batch_schedule import BatchSchedule
from megatron_core.training.microbatches import MicrobatchSource, looks_at_tokens


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What is read from disk before any process group exists, so that bad input ends the job at once."""

    datasets: Datasets
    rules: DocumentRules
    vocab_size: int
    tasks: Sequence[EncodedTask]
    """What --eval-tasks asks."""


def open_data(config: RunConfig) -> RunData:
    """Open tokenizer, data sets and tasks. Raises DataError where one cannot be used."""
    data, training = config.data, config.training
    tokenizer = build_tokenizer(data, config.model.vocab_size)
    vocab_size = max(tokenizer.vocab_size, config.model.vocab_size or 0)
    batch = training.global_batch_size
    assert batch is not None, "a resolved run has global_batch_size"
    datasets = build_datasets(
        data,
        seed=training.seed,
        seq_length=config.model.seq_length,
        tokenizer=tokenizer,
        eval_samples=None if training.full_validation else training.eval_iters * batch,
    )
    rules = document_rules(data, eod=tokenizer.eod, vocab_size=vocab_size)
    encoder = TextEncoder(tokenizer, config.model.seq_length)
    tasks = [
        encode_task(read_task(file, limit=training.eval_tasks_limit), encoder)
        for file in find_tasks(training.eval_tasks, None)
    ]
    return RunData(tasks=tasks, datasets=datasets, rules=rules, vocab_size=vocab_size)


def document_rules(data: DataConfig, *, eod: int | None, vocab_size: int) -> DocumentRules:
    """What documents mean in samples, as the run's flags say."""
    return DocumentRules(
        eod=eod,
        vocab_size=vocab_size,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        eod_mask_loss=data.eod_mask_loss,
    )


def training_plans(
    config: RunConfig, ctx: ParallelContext, schedule: BatchSchedule, consumed: int
) -> Iterator[StepPlan]:
    """Sample numbers of this dp coordinate for one step after another, without end."""
    while True:
        batch_size = schedule.size_at(consumed)
        yield training_step(
            consumed,
            global_batch_size=batch_size,
            micro_batch_size=config.training.micro_batch_size,
            dp_size=ctx.dp.size,
            dp_coordinate=ctx.dp.coordinate,
        )
        consumed += batch_size


def training_source(
    config: RunConfig, ctx: ParallelContext, data: RunData, schedule: BatchSchedule, consumed: int
) -> MicrobatchSource:
    """The training data from sample number `consumed` on."""
    return open_source(config, ctx, data, data.datasets.train, training_plans(config, ctx, schedule, consumed))


def open_source(
    config: RunConfig,
    ctx: ParallelContext,
    data: RunData,
    samples: TrainingData | ValidationData,
    plans: Iterator[StepPlan],
) -> MicrobatchSource:
    """Microbatches of these plans; tp coordinate 0 of the stages that look at tokens reads them. Close it."""
    by_document = config.data.reset_position_ids or config.data.reset_attention_mask
    needs_tokens = looks_at_tokens(ctx, by_document=by_document)
    loader = None
    if needs_tokens and ctx.tp.coordinate == 0:
        loader = Loader(
            samples, plans, seq_length=config.model.seq_length, rules=data.rules, num_workers=config.data.num_workers
        )
    return MicrobatchSource(
        ctx,
        config.model.seq_length,
        loader,
        needs_tokens=needs_tokens,
        masks=config.data.reset_attention_mask,
    )
