# SPDX-License-Identifier: Apache-2.0
"""What is planned: one training step of a model in a layout, with all that decides its time and memory."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from megatron_core.config.model import ModelConfig
from megatron_core.config.optim import Precision
from megatron_core.config.parallel import ScheduleName
from megatron_core.config.run import RunConfig
from megatron_core.planner.engine import OURS, Engine
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.planner.work import Shape

ITEMSIZE: dict[Precision, int] = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Recompute:
    """Which activations are computed again, as `config.parallel` has it."""

    granularity: str | None = None
    """full, selective or None."""
    method: str = "uniform"
    num_layers: int = 1
    modules: tuple[str, ...] = ("core_attn",)

    def full_layers(self, held: int) -> int:
        """Of a chunk's layers, those that are recomputed whole."""
        if self.granularity != "full":
            return 0
        return held if self.method == "uniform" else min(self.num_layers, held)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One step. The model has its true vocabulary."""

    model: ModelConfig
    tp: int
    pp: int
    dp: int
    chunks: int
    """Virtual stages of a rank."""
    layers: tuple[range, ...]
    """Of each virtual stage."""
    schedule: ScheduleName
    micro_batch: int
    microbatches: int
    """Of one dp rank."""
    sequence_parallel: bool
    recompute: Recompute
    precision: Precision
    distributed_optimizer: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    optimizer_offload: bool
    offload_gradients: bool
    """Whether gradients leave the device as backward makes them."""
    gradients_in_bf16: bool = False
    bucket_size: int = 40_000_000
    """Parameters of a gradient bucket."""
    offloaded_layers: int = 0
    """Of each chunk, the first ones, whose activations wait in the host's memory."""
    masked: bool = False
    """Whether attention looks at documents, by a mask of its own for each sample."""
    engine: Engine = OURS

    @staticmethod
    def of(config: RunConfig, world: int) -> "Workload":
        """That of a resolved run on `world` ranks, at its largest batch."""
        model, parallel, optim, training = config.model, config.parallel, config.optim, config.training
        dp = config.data_parallel_size(world)
        assert training.global_batch_size is not None, "a resolved run has global_batch_size"
        assert parallel.ddp_bucket_size is not None, "a resolved run has ddp_bucket_size"
        return Workload(
            model=model,
            tp=parallel.tensor_model_parallel_size,
            pp=parallel.pipeline_model_parallel_size,
            dp=dp,
            chunks=parallel.virtual_stages(model.num_layers),
            layers=stage_layers(model, parallel),
            schedule=parallel.schedule(model.num_layers),
            micro_batch=training.micro_batch_size,
            microbatches=training.global_batch_size // (training.micro_batch_size * dp),
            sequence_parallel=parallel.sequence_parallel,
            recompute=Recompute(
                granularity=parallel.recompute_granularity,
                method=parallel.recompute_method or "uniform",
                num_layers=parallel.recompute_num_layers or 1,
                modules=parallel.recompute_modules,
            ),
            precision=optim.precision,
            distributed_optimizer=parallel.use_distributed_optimizer,
            overlap_grad_reduce=parallel.overlap_grad_reduce,
            overlap_param_gather=parallel.overlap_param_gather,
            optimizer_offload=optim.optimizer_cpu_offload,
            offload_gradients=optim.optimizer_cpu_offload and optim.offload_gradients == "host",
            gradients_in_bf16=parallel.grad_reduce_in_bf16 and optim.precision == "bf16",
            offloaded_layers=parallel.cpu_offloading_num_layers,
            masked=config.data.reset_attention_mask,
            bucket_size=parallel.ddp_bucket_size,
        )

    @property
    def devices(self) -> int:
        """Ranks of the layout."""
        return self.tp * self.pp * self.dp

    @property
    def global_batch(self) -> int:
        """Samples of the step."""
        return self.micro_batch * self.microbatches * self.dp

    @property
    def itemsize(self) -> int:
        """Bytes of a weight and of an activation."""
        return ITEMSIZE[self.precision]

    @property
    def gradient_itemsize(self) -> int:
        """Bytes of an element that gradients add up in."""
        return 2 if self.gradients_in_bf16 else max(self.itemsize, 4)

    @cached_property
    def shape(self) -> Shape:
        """What decides the sizes of a rank's work."""
        return Shape(
            model=self.model,
            tp=self.tp,
            micro_batch=self.micro_batch,
            sequence_parallel=self.sequence_parallel,
            itemsize=self.itemsize,
            flash_attention=self.engine.flash_attention and self.itemsize == 2,
        )

    @cached_property
    def vocabulary_rows(self) -> int:
        """Rows of the vocabulary that one tp rank stores, padding included."""
        return self.model.padded_vocabulary(self.tp) // self.tp

    def stage_chunks(self, stage: int) -> range:
        """Virtual stages that a stage holds."""
        return range(stage, len(self.layers), self.pp)

    def replace(self, **changes: object) -> "Workload":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
