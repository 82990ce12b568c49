# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.checkpoint import CheckpointConfig


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"most_recent_k": -1}, None),
        ({"most_recent_k": 3}, 3),
        ({"save_retain_interval": 100}, 1),  # as in Megatron
        ({"save_retain_interval": 100, "most_recent_k": 2}, 2),
        ({"save_retain_interval": 100, "most_recent_k": -1}, None),
    ],
)
def test_how_many_checkpoints_stay(values, expected):
    assert CheckpointConfig(**values).keep_last == expected
