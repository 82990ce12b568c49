# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from megatron_core.config.optim import OptimConfig
from megatron_core.config.training import TrainingConfig
from megatron_core.optim.lr_schedule import Applied
from megatron_core.optim.weight_decay_schedule import weight_decay_schedule

ITERS = TrainingConfig(micro_batch_size=1, train_iters=100)
SAMPLES = TrainingConfig(micro_batch_size=1, global_batch_size=4, train_samples=400)


def test_constant_is_weight_decay_whatever_else_is_set() -> None:
    fixed = weight_decay_schedule(OptimConfig(weight_decay=0.3, start_weight_decay=0.0), ITERS)
    assert [fixed.value(s) for s in (0, 50, 500)] == [0.3, 0.3, 0.3]


@pytest.mark.parametrize(
    ("style", "quarter"), [("linear", 0.05 + 0.25 * 0.15), ("cosine", 0.05 + 0.15 * 0.5 * (1 - math.sqrt(0.5)))]
)
def test_ramps_over_the_whole_run(style: str, quarter: float) -> None:
    optim = OptimConfig(start_weight_decay=0.05, end_weight_decay=0.2, weight_decay_incr_style=style)  # type: ignore[arg-type]
    ramp = weight_decay_schedule(optim, ITERS)
    assert [ramp.value(s) for s in (0, 25, 50, 100, 150)] == pytest.approx([0.05, quarter, 0.125, 0.2, 0.2])
    in_samples = weight_decay_schedule(optim, SAMPLES)
    assert in_samples.at(Applied(steps=25, samples=100)) == pytest.approx(quarter)
