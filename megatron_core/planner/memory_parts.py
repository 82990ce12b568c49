# SPDX-License-Identifier: Apache-2.0
"""Bytes of device memory by what they are for, and what no count of tensors can see."""

from dataclasses import dataclass

from megatron_core.planner.workload import Workload

CONTEXT_BYTES = 1_100_000_000
"""CUDA's context with the kernels of torch, cuBLAS and cuDNN (bigscience measured it on V100 and A100)."""
COMMUNICATOR_BYTES = 200_000_000
"""NCCL's buffers of one communicator: some 4 MiB each way, channel and protocol."""
FRAGMENTED = 0.03
"""Of what is live, what the allocator rounds up and holds in holes: blocks are cut from segments of 2 MiB and more."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one rank at the worst moment of a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    """What forwards have left for their backwards."""
    buffers: int
    """Intermediate results, logits, messages, gathered tensors, the batch."""
    allowance: int
    """CUDA's context, NCCL's buffers, the allocator's holes: an allowance, not a count."""

    @property
    def live(self) -> int:
        """All tensors."""
        return self.total - self.allowance

    @property
    def total(self) -> int:
        """All."""
        return sum(vars(self).values())


def microbatches_at_once(workload: Workload, stage: int) -> float:
    """Those of which a stage holds all between forward and backward; a chunk's count by its share of the stage."""
    p, v, m = workload.pp, workload.chunks, workload.microbatches
    if workload.schedule == "gpipe":
        return m
    if workload.schedule == "interleaved":
        return min(2 * (p - 1 - stage) + (v - 1) * p + 1, m * v) / v
    return min(p - stage, m)


def allowance(workload: Workload, live: int, context: int = CONTEXT_BYTES) -> int:
    """Bytes beside so many of tensors."""
    communicators = sum(size > 1 for size in (workload.tp, workload.pp, workload.dp))
    return context + communicators * COMMUNICATOR_BYTES + round(FRAGMENTED * live)
