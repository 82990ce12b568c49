# SPDX-License-Identifier: Apache-2.0
"""Rules about activations in host memory: a model has the layers that are offloaded."""

from collections.abc import Iterator

from megatron_core.config.parallel import ParallelConfig
from megatron_core.config.rules.rule import Rule
from megatron_core.config.run import RunConfig


def _layers(config: RunConfig, world: int) -> Iterator[str]:
    offloaded, layers = config.parallel.cpu_offloading_num_layers, config.model.num_layers
    if offloaded > layers:
        yield f"--cpu-offloading-num-layers {offloaded} is more than --num-layers {layers}: set at most that"


def _size(config: RunConfig, world: int) -> Iterator[str]:
    size = config.parallel.min_offloaded_tensor_size
    if size != ParallelConfig().min_offloaded_tensor_size and not config.parallel.cpu_offloading_num_layers:
        yield f"--min-offloaded-tensor-size {size} needs --cpu-offloading-num-layers"


RULES = (Rule(_layers, "num_layers cpu_offloading_num_layers"), Rule(_size, "min_offloaded_tensor_size"))
