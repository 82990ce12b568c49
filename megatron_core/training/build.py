# SPDX-License-Identifier: Apache-2.0
"""Builds a run: one visible list of what it is made of, in order."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from megatron_core.config.optim import OptimConfig, Precision
from megatron_core.config.run import RunConfig
from megatron_core.data.batch import DocumentRules
from megatron_core.data.build import Datasets, build_datasets
from megatron_core.data.build_tokenizer import build_tokenizer
from megatron_core.data.loader import Loader
from megatron_core.data.sample import TrainingData, ValidationData
from megatron_core.data.sampler import StepPlan, training_step
from megatron_core.data_parallel.grad_reducer import GradReducer
from megatron_core.model.gpt import GPTChunk, build_chunks
from megatron_core.model.parameters import ParameterFactory
from megatron_core.optim.loss_scaler import initial
from megatron_core.optim.lr_schedule import LRSchedule, lr_schedule
from megatron_core.optim.mixed_precision import MixedPrecisionAdamW
from megatron_core.optim.weight_decay_schedule import WeightDecaySchedule, weight_decay_schedule
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.programs import Programs
from megatron_core.pipeline.runtime import PipelineRuntime
from megatron_core.tensor_parallel.shard_spec import SpecParameter, spec_parameters
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue
from megatron_core.training.batch_schedule import BatchSchedule, RunLength, batch_schedule, run_length
from megatron_core.training.microbatches import MicrobatchSource, looks_at_tokens
from megatron_core.training.stages import chunk_plans, stage_layers
from megatron_core.training.state import RunState
from megatron_core.training.timers import Timers

DTYPES: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class RunData:
    """What is read from disk before any process group exists, so that bad input ends the job at once."""

    datasets: Datasets
    rules: DocumentRules
    vocab_size: int


def open_data(config: RunConfig) -> RunData:
    """Open tokenizer and data sets. Raises DataError where one cannot be used."""
    data, training = config.data, config.training
    tokenizer = build_tokenizer(data, config.model.vocab_size)
    batch = training.global_batch_size
    assert batch is not None, "a resolved run has global_batch_size"
    datasets = build_datasets(
        data,
        seed=training.seed,
        seq_length=config.model.seq_length,
        tokenizer=tokenizer,
        eval_samples=None if training.full_validation else training.eval_iters * batch,
    )
    rules = DocumentRules(
        eod=tokenizer.eod,
        vocab_size=tokenizer.vocab_size,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        eod_mask_loss=data.eod_mask_loss,
    )
    return RunData(datasets=datasets, rules=rules, vocab_size=tokenizer.vocab_size)


@dataclass(frozen=True, kw_only=True)
class Run:
    """All parts of a run on one rank."""

    config: RunConfig
    ctx: ParallelContext
    data: RunData
    chunks: Sequence[GPTChunk]
    reducer: GradReducer
    optimizer: MixedPrecisionAdamW
    runtime: PipelineRuntime
    programs: Programs
    batch_schedule: BatchSchedule
    length: RunLength
    lr_schedule: LRSchedule
    weight_decay_schedule: WeightDecaySchedule
    source: MicrobatchSource
    loader: Loader | None
    timers: Timers


def build_run(config: RunConfig, ctx: ParallelContext, data: RunData, state: RunState) -> Run:
    """Everything that trains, from a resolved config; batches begin at `state.consumed_samples`."""
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=data.vocab_size))
    model, parallel, training = config.model, config.parallel, config.training
    dtype = DTYPES[config.optim.precision]
    queue = WeightGradientQueue()
    factory = ParameterFactory(model, ctx, queue, training.seed, dtype, parallel.sequence_parallel)
    layers = stage_layers(model, parallel)
    chunks = build_chunks(factory, chunk_plans(layers, ctx.pp.coordinate, ctx.pp.size))
    assert parallel.ddp_bucket_size is not None, "a resolved run has ddp_bucket_size"
    reducer = GradReducer(
        spec_parameters(nn.ModuleList(chunks)),  # a list, so that a shared parameter is met once
        ctx,
        bucket_size=parallel.ddp_bucket_size,
        grad_dtype=grad_dtype(config.optim, parallel.grad_reduce_in_bf16),
        overlap=parallel.overlap_grad_reduce,
    )
    s_local = model.seq_length // (ctx.tp.size if parallel.sequence_parallel else 1)
    schedule = batch_schedule(training, model.seq_length)
    loader = open_loader(
        config, ctx, data, data.datasets.train, training_plans(config, ctx, schedule, state.consumed_samples)
    )
    return Run(
        config=config,
        ctx=ctx,
        data=data,
        chunks=chunks,
        reducer=reducer,
        optimizer=MixedPrecisionAdamW(reducer.buckets, config.optim),
        runtime=PipelineRuntime(chunks, ctx, queue, (s_local, training.micro_batch_size, model.hidden_size), dtype),
        programs=Programs(parallel.pipeline_schedule, ctx.pp.size, len(chunks), ctx.pp.coordinate),
        batch_schedule=schedule,
        length=run_length(training, schedule),
        lr_schedule=lr_schedule(config.optim, training),
        weight_decay_schedule=weight_decay_schedule(config.optim, training),
        source=microbatch_source(config, ctx, loader),
        loader=loader,
        timers=Timers(config.logging.timing_log_level, ctx.device),
    )


def initial_state(config: RunConfig) -> RunState:
    """The state before the first step."""
    return RunState(loss_scale=initial(config.optim))


def grad_dtype(optim: OptimConfig, reduce_in_bf16: bool) -> torch.dtype:
    """What gradients accumulate in: fp32, unless the run is in fp64 or asks for bf16."""
    if optim.precision == "fp64":
        return torch.float64
    return torch.bfloat16 if reduce_in_bf16 and optim.precision == "bf16" else torch.float32


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


def open_loader(
    config: RunConfig,
    ctx: ParallelContext,
    data: RunData,
    samples: TrainingData | ValidationData,
    plans: Iterator[StepPlan],
) -> Loader | None:
    """A loader on the ranks that read: tp coordinate 0 of the stages that look at tokens."""
    if ctx.tp.coordinate != 0 or not _needs_tokens(config, ctx):
        return None
    return Loader(
        samples, plans, seq_length=config.model.seq_length, rules=data.rules, num_workers=config.data.num_workers
    )


def microbatch_source(config: RunConfig, ctx: ParallelContext, loader: Loader | None) -> MicrobatchSource:
    """The source of microbatches over a loader (None on the ranks that do not read)."""
    return MicrobatchSource(
        ctx,
        config.model.seq_length,
        loader,
        needs_tokens=_needs_tokens(config, ctx),
        masks=config.data.reset_attention_mask,
    )


def _needs_tokens(config: RunConfig, ctx: ParallelContext) -> bool:
    return looks_at_tokens(ctx, by_document=config.data.reset_position_ids or config.data.reset_attention_mask)


def padding_elements(parameters: Sequence[SpecParameter]) -> int:
    """Vocabulary padding among the elements that this rank counts."""
    counted = [p for p in parameters if p.spec.counted]
    return sum(p.numel() - math.prod(p.spec.local_shape) for p in counted)
