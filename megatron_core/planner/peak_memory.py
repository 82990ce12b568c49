# SPDX-License-Identifier: Apache-2.0
"""The memory of a layout: that of the stage which needs most, by playing its schedule or, for those who compare
thousands, by taking what one microbatch keeps as often as the schedule holds microbatches at once.
"""

import dataclasses

from megatron_core.planner.chunk_bytes import chunk_bytes
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.memory import MemoryModel
from megatron_core.planner.memory_parts import Memory, allowance, microbatches_at_once
from megatron_core.planner.parameters import stage_parameters
from megatron_core.planner.workload import Workload


def peak_memory(workload: Workload, hardware: Hardware) -> Memory:
    """By the schedule."""
    model = MemoryModel(workload, hardware)
    return max((model.stage(stage) for stage in _telling_stages(workload)), key=lambda memory: memory.total)


def quick_peak_memory(workload: Workload, hardware: Hardware) -> Memory:
    """About the same, without playing it."""
    model = MemoryModel(workload.replace(microbatches=1), hardware)
    stages = [_scaled(workload, model, stage) for stage in _telling_stages(workload)]
    return max(stages, key=lambda memory: memory.total)


def host_bytes(workload: Workload) -> int:
    """What a rank keeps in its host's memory: masters and moments of what it updates, and gradients that left."""
    if not workload.optimizer_offload:
        return 0
    count = max(stage_parameters(workload, stage) for stage in {0, workload.pp - 1})
    each = 12 + (4 if workload.offload_gradients else 0)
    return each * count // (workload.dp if workload.distributed_optimizer else 1)


def _telling_stages(workload: Workload) -> set[int]:
    """Those of which one needs most: the first, which holds most microbatches, the last, which has the logits, and with
    zero-bubble those next to them, since each stage puts off more weight gradients than the one before.
    """
    p = workload.pp
    beside = {min(1, p - 1), max(p - 2, 0)} if workload.schedule == "zero-bubble" else set()
    return {0, p - 1} | beside


def _scaled(workload: Workload, model: MemoryModel, stage: int) -> Memory:
    one, more = model.stage(stage), 0
    activations = round((microbatches_at_once(workload, stage) - 1) * one.activations)
    if workload.schedule == "zero-bubble" and stage > 0:
        more = min(stage, workload.microbatches - 1) * chunk_bytes(workload, stage).queued
    return dataclasses.replace(
        one,
        activations=one.activations + activations,
        buffers=one.buffers + more,
        allowance=allowance(workload, one.live + activations + more) if one.allowance else 0,
    )
