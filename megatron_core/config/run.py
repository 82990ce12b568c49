# SPDX-License-Identifier: Apache-2.0
"""RunConfig: all sections of one run, and its resolution for a world size.

`resolve` derives nothing by stealth: it returns a new config in which every "unset" that depends on other fields is
written out, so that printing it gives a file which reproduces the run.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from megatron_core.config.batch_steps import parse_batch_steps
from megatron_core.config.checkpoint import CheckpointConfig
from megatron_core.config.data import DataConfig
from megatron_core.config.logging import LoggingConfig
from megatron_core.config.model import ModelConfig
from megatron_core.config.optim import OptimConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.config.training import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that was asked for; each class below takes only the section that it uses."""

    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def data_parallel_size(self, world_size: int) -> int:
        """Copies of the model in a world of `world_size` ranks."""
        return world_size // self.parallel.model_parallel_size

    def with_vocabulary(self, vocab_size: int) -> "RunConfig":
        """A copy whose model has so many tokens: once the tokenizer has been asked."""
        return dataclasses.replace(self, model=dataclasses.replace(self.model, vocab_size=vocab_size))

    def resolve(self, world_size: int) -> "RunConfig":
        """A copy with every derived value written out. Expects a config that `validate` accepted for this world."""
        model, parallel, optim, training = self.model, self.parallel, self.optim, self.training
        dp = self.data_parallel_size(world_size)
        v = parallel.virtual_stages(model.num_layers)
        full = parallel.recompute_granularity == "full"
        decay_iters, decay_samples = optim.lr_decay_iters, optim.lr_decay_samples
        if training.train_samples is None and decay_iters is None:
            decay_iters = training.train_iters
        if training.train_samples is not None and decay_samples is None:
            decay_samples = training.train_samples
        split = self.data.split
        if split is None and (self.data.data_path or self.data.data_args_path):
            split = "969,30,1"
        if split is not None:
            split = split.replace(" ", "")
        return dataclasses.replace(
            self,
            model=dataclasses.replace(
                model,
                ffn_hidden_size=model.ffn_size,
                kv_channels=model.head_dim,
                gelu=model.gelu_form,
            ),
            parallel=dataclasses.replace(
                parallel,
                sequence_parallel=parallel.sequence_parallel and parallel.tensor_model_parallel_size > 1,
                pipeline_schedule=parallel.schedule(model.num_layers),
                num_virtual_stages_per_pipeline_rank=v if v > 1 else None,
                num_layers_per_virtual_pipeline_stage=None,
                recompute_method=parallel.recompute_method or ("uniform" if full else None),
                recompute_num_layers=parallel.recompute_num_layers or (1 if full else None),
                ddp_bucket_size=parallel.ddp_bucket_size or max(40_000_000, 1_000_000 * dp),
            ),
            optim=dataclasses.replace(
                optim,
                lr_decay_iters=decay_iters,
                lr_decay_samples=decay_samples,
                offload_gradients=_gradients_place(optim, parallel),
            ),
            data=dataclasses.replace(self.data, split=split, tokenizer_type=self.data.tokenizer),
            training=dataclasses.replace(training, global_batch_size=_largest_batch(training, dp)),
            checkpoint=dataclasses.replace(self.checkpoint, most_recent_k=self.checkpoint.keep_last or -1),
        )


def _gradients_place(optim: OptimConfig, parallel: ParallelConfig) -> Literal["auto", "device", "host"]:
    """Not on the host with a pipeline: every microbatch would be reduced, and stages have cut the gradients already."""
    if optim.offload_gradients != "auto" or not optim.optimizer_cpu_offload:
        return optim.offload_gradients
    return "host" if parallel.pipeline_model_parallel_size == 1 else "device"


def _largest_batch(training: TrainingConfig, dp: int) -> int:
    if training.step_batch_size_schedule is not None:
        return max(size for _, size in parse_batch_steps(training.step_batch_size_schedule))
    return training.global_batch_size or training.micro_batch_size * dp
