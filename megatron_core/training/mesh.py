# SPDX-License-Identifier: Apache-2.0
"""The mesh that a run's configuration asks for."""

from megatron_core.config.run import RunConfig
from megatron_core.parallel.rank_grid import DEFAULT_ORDER, TP_PP_DP_ORDER, RankGrid


def grid_of(config: RunConfig, world_size: int) -> RankGrid:
    """The mesh that a resolved config asks for."""
    parallel = config.parallel
    return RankGrid(
        tp=parallel.tensor_model_parallel_size,
        cp=parallel.context_parallel_size,
        dp=config.data_parallel_size(world_size),
        pp=parallel.pipeline_model_parallel_size,
        order=TP_PP_DP_ORDER if parallel.use_tp_pp_dp_mapping else DEFAULT_ORDER,
    )


def kv_replicas(config: RunConfig) -> int:
    """How many neighbours on tp hold the same key/value heads."""
    return max(config.parallel.tensor_model_parallel_size // config.model.query_groups, 1)
