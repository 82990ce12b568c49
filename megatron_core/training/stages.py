# SPDX-License-Identifier: Apache-2.0
"""Which part of the model each rank holds, and how that is told at start-up."""

from megatron_core.model.gpt import ChunkPlan


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
