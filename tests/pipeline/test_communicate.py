# SPDX-License-Identifier: Apache-2.0
"""Sends and receives are complete, meet in the round of the send, and grouped as `check` proves to be safe."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.pipeline.action import Action, Exchange
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.schedules import SCHEDULES, build, interleaved, one_f_one_b


def lines(program):
    return [" ".join(map(str, steps)) for steps in program]


def test_two_stages_by_hand():
    assert lines(communicate(one_f_one_b(2, 2), 1)) == [
        "F0.0 [A0.0>1] F1.0 [A1.0>1] [G0.0<1] B0.0 [G1.0<1] B1.0",
        "[A0.0<0] F0.0 [A1.0<0] B0.0 [G0.0>0] F1.0 B1.0 [G1.0>0]",
    ]


def test_the_last_stage_hands_on_to_the_next_chunk_of_the_first():
    first, last = communicate(interleaved(2, 2, 1), 2)
    assert lines([first, last]) == [
        "F0.0 [A0.0>1] [A0.1<1] F0.1 [A0.1>1] [G0.1<1] B0.1 [G0.1>1] [G0.0<1] B0.0",
        "[A0.0<0] F0.0 [A0.0>0] [A0.1<0] F0.1 B0.1 [G0.1>0] [G0.0<0] B0.0 [G0.0>0]",
    ]


def test_one_stage_needs_no_exchange():
    schedule = interleaved(1, 3, 2)
    assert communicate(schedule, 3) == schedule


sizes = st.tuples(st.sampled_from(SCHEDULES), st.integers(2, 8), st.integers(1, 3), st.integers(1, 12))


@settings(deadline=None, max_examples=50)
@given(sizes)
def test_compute_is_untouched_and_each_edge_is_crossed_once_a_microbatch(size):
    name, p, v, m = size
    v = v if name == "interleaved" else 1
    schedule = build(name, p, v, m)
    program = communicate(schedule, v)
    assert schedule == tuple(tuple(step for step in steps if isinstance(step, Action)) for steps in program)
    transfers = [t for steps in program for step in steps if isinstance(step, Exchange) for t in step.transfers]
    for send in (True, False):
        for payload in ("activation", "gradient"):
            assert sum(t.send is send and t.payload == payload for t in transfers) == (p * v - 1) * m


def test_a_schedule_that_deadlocks_is_shown():
    stages = ("F0.0 B0.0 F1.0 B1.0", "F0.0 F1.0 B0.0 B1.0")
    schedule = tuple(tuple(map(Action.parse, steps.split())) for steps in stages)
    with pytest.raises(AssertionError, match=r"deadlocks(.|\n)*F0\.0  --> B0\.0(.|\n)*F0\.0  --> F1\.0"):
        communicate(schedule, 1)
