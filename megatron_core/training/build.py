# SPDX-License-Identifier: Apache-2.0
"""Builds a run: one visible list of what it is made of, in order."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from megatron_core.checkpoint.held import Held, held_tensors
from megatron_core.checkpoint.held_errors import held_with_errors
from megatron_core.config.optim import OptimConfig, Precision
from megatron_core.config.run import RunConfig
from megatron_core.data_parallel.compressed_exchange import CompressedExchange
from megatron_core.data_parallel.flat_bucket import FlatBucket
from megatron_core.data_parallel.grad_reducer import GradReducer
from megatron_core.data_parallel.weight_gather import WeightGather
from megatron_core.model.activation_offload import ActivationOffload
from megatron_core.model.gpt import GPTChunk, build_chunks
from megatron_core.model.parameters import ParameterFactory
from megatron_core.model.recompute_plan import RecomputePlan
from megatron_core.optim.delayed_update import DelayedAdamW
from megatron_core.optim.host_offload import HostOffloadAdamW
from megatron_core.optim.loss_scaler import initial
from megatron_core.optim.lr_schedule import LRSchedule, lr_schedule
from megatron_core.optim.mixed_precision import MixedPrecisionAdamW
from megatron_core.optim.onebit_adam import OneBitAdam, takes_local_gradients
from megatron_core.optim.optimizer import Optimizer
from megatron_core.optim.weight_decay_schedule import WeightDecaySchedule, weight_decay_schedule
from megatron_core.parallel.context import ParallelContext
from megatron_core.pipeline.programs import Programs
from megatron_core.pipeline.runtime import PipelineRuntime
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.tensor_parallel.shard_spec import SpecParameter, spec_parameters
from megatron_core.tensor_parallel.weight_gradient import WeightGradientQueue
from megatron_core.training.batch_schedule import BatchSchedule, RunLength, batch_schedule, run_length
from megatron_core.training.microbatches import MicrobatchSource
from megatron_core.training.run_data import RunData, training_source
from megatron_core.training.stages import chunk_plans
from megatron_core.training.state import RunState
from megatron_core.training.timers import Timers

DTYPES: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """All parts of a run on one rank."""

    config: RunConfig
    ctx: ParallelContext
    data: RunData
    chunks: Sequence[GPTChunk]
    reducer: GradReducer
    weight_gather: WeightGather
    optimizer: Optimizer
    runtime: PipelineRuntime
    programs: Programs
    batch_schedule: BatchSchedule
    length: RunLength
    lr_schedule: LRSchedule
    weight_decay_schedule: WeightDecaySchedule
    source: MicrobatchSource
    timers: Timers

    def held(self, *, with_optim: bool, applied_steps: int) -> list[Held]:
        """What a checkpoint after so many updates has of this rank, once all weights are there."""
        self.weight_gather.finish()
        compressed = takes_local_gradients(self.optimizer, applied_steps - 1)
        tensors_of = held_with_errors if compressed else held_tensors
        return tensors_of(self.reducer.buckets, self.optimizer, with_optim=with_optim)


def build_run(
    config: RunConfig, ctx: ParallelContext, data: RunData, state: RunState, *, draws_weights: bool = True
) -> Run:
    """Everything that trains, from a resolved config; batches begin at `state.consumed_samples`.

    draws_weights: else they are zero.
    """
    config = config.with_vocabulary(data.vocab_size)
    model, parallel, training = config.model, config.parallel, config.training
    dtype = DTYPES[config.optim.precision]
    queue = WeightGradientQueue()
    factory = ParameterFactory(
        model,
        ctx,
        queue,
        training.seed if draws_weights else None,
        dtype,
        parallel.sequence_parallel,
        RecomputePlan.of(parallel),
        ActivationOffload.of(parallel, ctx.device),
    )
    layers = stage_layers(model, parallel)
    chunks = build_chunks(factory, chunk_plans(layers, ctx.pp.coordinate, ctx.pp.size))
    assert parallel.ddp_bucket_size is not None, "a resolved run has ddp_bucket_size"
    reducer = GradReducer(
        spec_parameters(nn.ModuleList(chunks)),  # a list, so that a shared parameter is met once
        ctx,
        bucket_size=parallel.ddp_bucket_size,
        grad_dtype=grad_dtype(config.optim, parallel.grad_reduce_in_bf16),
        overlap=parallel.overlap_grad_reduce,
        sharded=parallel.use_distributed_optimizer,
        on_host=config.optim.offload_gradients == "host",
    )
    weight_gather = WeightGather(
        reducer.buckets,
        nn.ModuleList(chunks).modules(),
        ctx,
        sharded=reducer.sharded,
        overlap=parallel.overlap_param_gather,
    )
    s_local = model.seq_length // (ctx.tp.size if parallel.sequence_parallel else 1)
    schedule = batch_schedule(training, model.seq_length)
    return Run(
        config=config,
        ctx=ctx,
        data=data,
        chunks=chunks,
        reducer=reducer,
        weight_gather=weight_gather,
        optimizer=build_optimizer(config.optim, reducer.buckets, ctx, weight_gather.start_bucket),
        runtime=PipelineRuntime(chunks, ctx, queue, (s_local, training.micro_batch_size, model.hidden_size), dtype),
        programs=Programs(parallel.pipeline_schedule, ctx.pp.size, len(chunks), ctx.pp.coordinate),
        batch_schedule=schedule,
        length=run_length(training, schedule),
        lr_schedule=lr_schedule(config.optim, training),
        weight_decay_schedule=weight_decay_schedule(config.optim, training),
        source=training_source(config, ctx, data, schedule, state.consumed_samples),
        timers=Timers(config.logging.timing_log_level, ctx.device),
    )


def build_optimizer(
    optim: OptimConfig, buckets: Sequence[FlatBucket], ctx: ParallelContext, on_return: Callable[[int], None]
) -> Optimizer:
    """The optimizer that was asked for. Raises ConfigError where the host has no room for its states.

    on_return: told the number of each bucket whose weights come back from the host while others are still there.
    """
    if optim.optimizer == "onebit-adam":
        return OneBitAdam(buckets, optim, CompressedExchange(buckets, ctx))
    if not optim.optimizer_cpu_offload:
        return MixedPrecisionAdamW(buckets, optim)
    directory, start = optim.optimizer_offload_directory, optim.optimizer_delayed_update_start
    adam = HostOffloadAdamW(
        buckets,
        optim,
        threads=torch.get_num_threads(),
        directory=None if directory is None else Path(directory),
        with_masters=start is not None,
        on_return=on_return,
    )
    return adam if start is None else DelayedAdamW(buckets, adam, start=start)


def rewound(run: Run, state: RunState) -> Run:
    """The run with its data at `state`: after a checkpoint was loaded into it. The former source is closed."""
    run.source.close()
    return dataclasses.replace(
        run, source=training_source(run.config, run.ctx, run.data, run.batch_schedule, state.consumed_samples)
    )


def initial_state(config: RunConfig) -> RunState:
    """The state before the first step."""
    return RunState(loss_scale=initial(config.optim))


def grad_dtype(optim: OptimConfig, reduce_in_bf16: bool) -> torch.dtype:
    """What gradients accumulate in: fp32, unless the run is in fp64 or asks for bf16."""
    if optim.precision == "fp64":
        return torch.float64
    return torch.bfloat16 if reduce_in_bf16 and optim.precision == "bf16" else torch.float32


def padding_elements(parameters: Sequence[SpecParameter]) -> int:
    """Vocabulary padding among the elements that this rank counts."""
    counted = [p for p in parameters if p.spec.counted]
    return sum(p.numel() - math.prod(p.spec.local_shape) for p in counted)
