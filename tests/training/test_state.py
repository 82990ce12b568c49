# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from megatron_core.optim.loss_scaler import LossScale
from megatron_core.optim.lr_schedule import Applied
from megatron_core.training.faults import RecentLoss
from megatron_core.training.state import RunState


def test_a_run_starts_at_zero() -> None:
    state = RunState(loss_scale=LossScale(scale=1.0))
    assert (state.step, state.applied, state.consumed_samples, state.elapsed_s) == (0, Applied(), 0, 0.0)
    assert (state.recent_loss, state.skipped_steps) == (RecentLoss(), ())


def test_a_state_never_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunState(loss_scale=LossScale(scale=1.0)).step = 1  # type: ignore[misc]
