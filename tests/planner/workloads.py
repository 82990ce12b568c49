# SPDX-License-Identifier: Apache-2.0
"""Workloads for tests."""

from megatron_core.config.model import ModelConfig
from megatron_core.config.parallel import ParallelConfig
from megatron_core.planner.stage_layers import stage_layers
from megatron_core.planner.workload import Recompute, Workload


def workload(model: ModelConfig, *, tp: int = 1, pp: int = 1, dp: int = 1, chunks: int = 1, **more: object) -> Workload:
    """One step in bf16 of 4 microbatches of one sample."""
    parallel = ParallelConfig(
        pipeline_model_parallel_size=pp, num_virtual_stages_per_pipeline_rank=chunks if chunks > 1 else None
    )
    values: dict[str, object] = {
        "micro_batch": 1,
        "microbatches": 4,
        "schedule": "interleaved" if chunks > 1 else "1f1b",
        "sequence_parallel": False,
        "recompute": Recompute(),
        "precision": "bf16",
        "distributed_optimizer": False,
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "optimizer_offload": False,
        "offload_gradients": False,
    }
    return Workload(
        model=model,
        tp=tp,
        pp=pp,
        dp=dp,
        chunks=chunks,
        layers=stage_layers(model, parallel),
        **(values | more),  # type: ignore[arg-type]
    )
