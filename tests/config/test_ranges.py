# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.fields import all_fields
from megatron_core.config.ranges import REQUIRED, out_of_range
from megatron_core.config.run import RunConfig


def test_required_fields_are_said_to_be_required():
    messages = [item.message for item in out_of_range(RunConfig())]
    assert messages == [
        "--num-layers is required",
        "--hidden-size is required",
        "--num-attention-heads is required",
        "--seq-length is required",
        "--micro-batch-size is required",
        "--lr is required",
    ]
    assert len(messages) == len(REQUIRED)


@pytest.mark.parametrize(
    ("field", "value", "bounds"),
    [
        ("num_layers", -1, ">= 1"),
        ("train_iters", 0, ">= 1"),
        ("weight_decay", -0.1, ">= 0"),
        ("norm_epsilon", 0.0, "> 0"),
        ("hidden_dropout", 1.0, ">= 0 and < 1"),
        ("adam_beta2", 1.0, ">= 0 and < 1"),
        ("lr_warmup_fraction", 1.5, ">= 0 and <= 1"),
        ("rotary_percent", 0.0, "> 0 and <= 1"),
        ("timing_log_level", 3, "<= 2"),
        ("profile_ranks", (0, -1), ">= 0"),
        ("rampup_batch_size", (1, 1, -5), ">= 0"),
        ("z_loss_coeff", -1e-4, ">= 0"),
        ("loss_spike_factor", 1.0, "> 1"),
        ("save_interval", 0, ">= 1"),
        ("most_recent_k", -2, ">= -1"),
    ],
)
def test_each_bound(config_with, field, value, bounds):
    (found,) = out_of_range(config_with(**{field: value}))
    assert found.field == field
    assert found.message == f"--{field.replace('_', '-')} is {value}; it must be {bounds}"


def test_every_number_has_a_range(config_with):
    # Far below any bound: a field that accepts it has no lower bound at all.
    free = []
    for field in all_fields():
        if field.type.scalar in (int, float):
            value = field.type.scalar(-1e30)
            values = value if field.type.length is None else (value,)
            if not list(out_of_range(config_with(**{field.name: values}))):
                free.append(field.name)
    assert free == []


def test_unset_values_are_not_bounded(config_with):
    assert list(out_of_range(config_with(kv_channels=None, loss_scale=None, rampup_batch_size=None))) == []
