# SPDX-License-Identifier: Apache-2.0
"""The clock: starts, ends, makespan, bubble, and a deadlock that is shown."""

import pytest

from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.schedules import one_f_one_b
from megatron_core.pipeline.timeline import play, simulate_unit


def test_two_stages_by_hand():
    timeline = simulate_unit(one_f_one_b(2, 2), 1, forward=1, backward=2)
    first, last = ([(str(span.action), span.start, span.end) for span in spans] for spans in timeline.stages)
    assert first == [("F0.0", 0, 1), ("F1.0", 1, 2), ("B0.0", 4, 6), ("B1.0", 7, 9)]
    assert last == [("F0.0", 1, 2), ("B0.0", 2, 4), ("F1.0", 4, 5), ("B1.0", 5, 7)]
    assert timeline.makespan == 9
    assert timeline.bubble == pytest.approx(0.5)


def test_durations_may_depend_on_the_stage():
    timeline = play(one_f_one_b(2, 8), 1, lambda stage, action: 1.0 if stage == 0 else 3.0)
    assert timeline.makespan == 1 + 8 * 6 + 1
    assert timeline.bubble == pytest.approx(2 / 48)


def test_a_deadlock_shows_who_waits():
    backwards_first = ((Action(Kind.B, 0, 0), Action(Kind.F, 0, 0)), (Action(Kind.F, 0, 0), Action(Kind.B, 0, 0)))
    with pytest.raises(AssertionError, match=r"deadlocks(.|\n)*stage   0.*--> B0\.0  F0\.0\n.*stage   1.*--> F0\.0"):
        simulate_unit(backwards_first, 1)
