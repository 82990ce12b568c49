# SPDX-License-Identifier: Apache-2.0
"""Which part of the model each rank holds, and how that is told at start-up."""

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.model.gpt import ChunkPlan
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


def chunk_plans(layers: tuple[range, ...], stage: int, p: int) -> list[ChunkPlan]:
    """The chunks of one stage, in order."""
    last = len(layers) - 1
    return [ChunkPlan(layers[k], has_embedding=k == 0, has_head=k == last) for k in range(stage, len(layers), p)]


def describe_stages(layers: tuple[range, ...], p: int) -> str:
    """One line: the layers of each rank of the pipeline, such as `0-2 + embedding | 3-5 + head`."""
    stages = []
    for stage in range(p):
        parts = []
        for plan in chunk_plans(layers, stage, p):
            held = [f"{plan.layers.start}-{plan.layers.stop - 1}"] if plan.layers else ["no layer"]
            held += ["embedding"] * plan.has_embedding + ["head"] * plan.has_head
            parts.append(" + ".join(held))
        stages.append(", ".join(parts))
    return " | ".join(stages)
