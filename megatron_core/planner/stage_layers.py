# SPDX-License-Identifier: Apache-2.0
"""Which layers each virtual stage of a run holds, by count or by cost."""

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.pipeline.partition import partition
from megatron_core.planner.flops import forward_flops


def stage_layers(model: ModelConfig, parallel: ParallelConfig) -> tuple[range, ...]:
    """Layers of each virtual stage k = chunk * p + stage. Raises ConfigError when they cannot be shared out."""
    by_cost = parallel.pipeline_split == "cost"
    flops = forward_flops(model)
    layer_cost = flops.layer if by_cost else 1.0
    return partition(
        model.num_layers,
        parallel.pipeline_model_parallel_size,
        parallel.virtual_stages(model.num_layers),
        first=parallel.decoder_first_pipeline_num_layers,
        last=parallel.decoder_last_pipeline_num_layers,
        layer_cost=layer_cost,
        embedding_cost=layer_cost if parallel.account_for_embedding_in_pipeline_split else 0.0,
        head_cost=flops.head if by_cost else float(parallel.account_for_loss_in_pipeline_split),
    )
