# SPDX-License-Identifier: Apache-2.0
import pytest


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"cpu_offloading_num_layers": 9},
            "--cpu-offloading-num-layers 9 is more than --num-layers 8: set at most that",
        ),
        ({"cpu_offloading_num_layers": -1}, "--cpu-offloading-num-layers is -1; it must be >= 0"),
        (
            {"min_offloaded_tensor_size": 10},
            "--min-offloaded-tensor-size 10 needs --cpu-offloading-num-layers",
        ),
        (
            {"cpu_offloading_num_layers": 1, "min_offloaded_tensor_size": 0},
            "--min-offloaded-tensor-size is 0; it must be >= 1",
        ),
    ],
)
def test_each_rule(complaints, values, message):
    assert complaints(**values) == [message]


@pytest.mark.parametrize(
    "values",
    [
        {"cpu_offloading_num_layers": 8},
        {"cpu_offloading_num_layers": 1, "min_offloaded_tensor_size": 1},
        {"cpu_offloading_num_layers": 3, "recompute_granularity": "full"},
        {"cpu_offloading_num_layers": 3, "pipeline_model_parallel_size": 4, "world_size": 4},
    ],
)
def test_what_is_fine(complaints, values):
    assert complaints(**values) == []
