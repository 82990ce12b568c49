# SPDX-License-Identifier: Apache-2.0
from megatron_core.config.parallel import ParallelConfig


def test_one_copy_of_the_model():
    assert ParallelConfig(tensor_model_parallel_size=8, pipeline_model_parallel_size=35).model_parallel_size == 280


def test_virtual_stages_by_layers_or_by_number():
    by_layers = ParallelConfig(pipeline_model_parallel_size=4, num_layers_per_virtual_pipeline_stage=2)
    assert by_layers.virtual_stages(24) == 3
    assert ParallelConfig(num_virtual_stages_per_pipeline_rank=5).virtual_stages(24) == 5
    assert ParallelConfig(pipeline_model_parallel_size=4).virtual_stages(24) == 1


def test_the_schedule_follows_from_virtual_stages_unless_named():
    assert ParallelConfig().schedule(24) == "1f1b"
    assert ParallelConfig(num_virtual_stages_per_pipeline_rank=2).schedule(24) == "interleaved"
    assert ParallelConfig(pipeline_schedule="gpipe").schedule(24) == "gpipe"
