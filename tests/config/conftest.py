# SPDX-License-Identifier: Apache-2.0
"""A configuration with nothing wrong, and what is said when single fields of it are changed."""

import pytest

from megatron_core.config.fields import all_fields, replace_fields
from megatron_core.config.run import RunConfig
from megatron_core.config.validate import violations

GOOD = {
    "num_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "seq_length": 32,
    "max_position_embeddings": 32,
    "micro_batch_size": 2,
    "lr": 1e-3,
    "train_iters": 100,
    "mock_data": True,
    "vocab_size": 100,
}


def changed(**values):
    by_name = {field.name: field for field in all_fields()}
    return replace_fields(RunConfig(), {by_name[name]: value for name, value in {**GOOD, **values}.items()})


@pytest.fixture
def config_with():
    """A function: fields to change -> the config."""
    return changed


@pytest.fixture
def complaints():
    """A function: fields to change (and the world size) -> all violations."""
    return lambda world_size=1, **values: violations(changed(**values), world_size)
