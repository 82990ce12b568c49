# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.optim import OptimConfig


@pytest.mark.parametrize("name", ["fp64", "bf16", "fp16"])
def test_precision_is_the_switch_that_is_on(name):
    assert OptimConfig(**{name: True}).precision == name
    assert OptimConfig().precision == "fp32"
