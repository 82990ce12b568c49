# SPDX-License-Identifier: Apache-2.0
import math
from functools import reduce

import pytest

from megatron_core.training.faults import RecentLoss


def seen(*losses: float) -> RecentLoss:
    return reduce(RecentLoss.plus, losses, RecentLoss())


def test_the_mean_is_plain_at_first_and_then_forgets() -> None:
    assert seen(4.0, 2.0, 3.0) == RecentLoss(pytest.approx(3.0), 3)
    assert seen(*range(20)).mean == pytest.approx(9.5)
    assert seen(*[2.0] * 20, 4.0).mean == pytest.approx(0.95 * 2 + 0.05 * 4)
    assert seen(*[9.0] * 5, *[1.0] * 200).mean == pytest.approx(1.0, abs=1e-3)


def test_what_is_no_number_does_not_enter_the_mean() -> None:
    assert seen(2.0, math.nan, math.inf) == seen(2.0)


def test_a_spike_is_told_from_what_is_usual() -> None:
    usual = seen(*[2.0] * 10)
    assert usual.is_spike(3.01, 1.5) and usual.is_spike(math.inf, 1.5)
    assert not usual.is_spike(2.99, 1.5) and not usual.is_spike(math.nan, 1.5)


def test_a_falling_loss_and_the_first_losses_are_no_spikes() -> None:
    assert not seen(*[2.0] * 9).is_spike(100.0, 1.5)
    recent = RecentLoss()
    for step in range(100):
        loss = 10 / (1 + step / 10)
        assert not recent.is_spike(loss, 1.01)
        recent = recent.plus(loss)


def test_faults_are_counted_until_a_step_is_applied() -> None:
    recent = seen(2.0).plus_fault().plus_fault()
    assert recent == RecentLoss(2.0, 1, 2)
    assert recent.plus(2.0).faults == 0 and recent.plus(math.nan).faults == 0
