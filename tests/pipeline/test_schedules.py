# SPDX-License-Identifier: Apache-2.0
"""Every schedule, at every size asked for: proved by `check`, with the bubble and the live activations of its paper."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.errors import ConfigError
from megatron_core.pipeline.action import Action, Kind
from megatron_core.pipeline.check import check
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.schedules import (
    SCHEDULES,
    build,
    forward_only,
    gpipe,
    interleaved,
    one_f_one_b,
    zero_bubble,
)
from megatron_core.pipeline.timeline import simulate_unit

stages, microbatches = st.integers(1, 16), st.integers(1, 64)


def prove_gpipe(p, m):
    report = check(communicate(gpipe(p, m), 1), p, 1, m)
    assert simulate_unit(gpipe(p, m), 1).bubble == pytest.approx((p - 1) / m)
    assert report.peak_live == (m,) * p


def prove_one_f_one_b(p, m):
    schedule = one_f_one_b(p, m)
    report = check(communicate(schedule, 1), p, 1, m)
    assert simulate_unit(schedule, 1).bubble == pytest.approx((p - 1) / m)
    assert simulate_unit(schedule, 1, backward=1).bubble == pytest.approx((p - 1) / m)
    assert report.peak_live == tuple(min(p - stage, m) for stage in range(p))


def prove_interleaved(p, v, m):
    schedule = interleaved(p, v, m)
    report = check(communicate(schedule, v), p, v, m)
    for backward in (1.0, 2.0):
        timeline = simulate_unit(schedule, v, backward=backward)
        if m % p == 0:
            assert timeline.bubble == pytest.approx((p - 1) / (v * m))
        else:
            padded = -(-m // p) * p
            assert timeline.makespan <= (v * padded + p - 1) * (1 + backward) + 1e-9
    bounds = [min(2 * (p - stage - 1) + (v - 1) * p + 1, v * m) for stage in range(p)]
    assert all(live <= bound for live, bound in zip(report.peak_live, bounds))
    if v > 1 and m % p == 0:
        assert list(report.peak_live) == bounds


def prove_zero_bubble(p, m):
    schedule = zero_bubble(p, m)
    report = check(communicate(schedule, 1), p, 1, m)
    of_1f1b = check(communicate(one_f_one_b(p, m), 1), p, 1, m)
    bubble, theirs = simulate_unit(schedule, 1).bubble, simulate_unit(one_f_one_b(p, m), 1).bubble
    assert bubble <= (theirs / 3 if m >= p else theirs) + 1e-9
    # The last stage must hold p to give a third of the bubble back; before their I, no stage holds more than in 1F1B.
    assert max(report.peak_live) <= max(of_1f1b.peak_live)
    assert all(full <= live for full, live in zip(report.peak_full, of_1f1b.peak_live))


@settings(deadline=None, max_examples=30)
@given(stages, microbatches)
def test_gpipe(p, m):
    prove_gpipe(p, m)


@settings(deadline=None, max_examples=30)
@given(stages, microbatches)
def test_one_f_one_b(p, m):
    prove_one_f_one_b(p, m)


@settings(deadline=None, max_examples=30)
@given(stages, st.integers(1, 4), microbatches)
def test_interleaved(p, v, m):
    prove_interleaved(p, v, m)


@settings(deadline=None, max_examples=30)
@given(stages, st.integers(1, 4), st.integers(1, 4))
def test_interleaved_where_p_divides_m(p, v, groups):
    prove_interleaved(p, v, groups * p)


@settings(deadline=None, max_examples=30)
@given(stages, microbatches)
def test_zero_bubble(p, m):
    prove_zero_bubble(p, m)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("p", range(1, 17))
def test_all_sizes(p):
    """All p and v, with every m up to two full groups and a bit (after that schedules repeat), and some large."""
    for m in sorted({*range(1, 2 * p + 3), 47, 63, 64}):
        prove_gpipe(p, m)
        prove_one_f_one_b(p, m)
        prove_zero_bubble(p, m)
        for v in range(1, 5):
            prove_interleaved(p, v, m)


def text(steps):
    return " ".join(str(step).removesuffix(".0") for step in steps)


def test_the_picture_of_1f1b_in_the_paper():
    first, *_, last = one_f_one_b(4, 5)
    assert text(first) == "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4"
    assert text(last) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"


def test_the_picture_of_interleaving_in_the_paper():
    assert " ".join(map(str, interleaved(2, 2, 2)[0])) == "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"
    assert " ".join(map(str, interleaved(2, 2, 2)[1])) == "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"


def test_microbatches_that_p_does_not_divide_leave_no_trace_of_the_padding():
    assert " ".join(map(str, interleaved(2, 2, 1)[0])) == "F0.0 F0.1 B0.1 B0.0"


def test_one_chunk_is_not_interleaved():
    assert interleaved(4, 1, 6) == one_f_one_b(4, 6)


def test_zero_bubble_splits_the_backward_where_a_gradient_is_passed_on():
    schedule = zero_bubble(3, 4)
    assert {action.kind for action in schedule[0]} == {Kind.F, Kind.B}
    assert text(schedule[2]) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


def test_evaluation_runs_each_forward_once_and_communicates():
    schedule = forward_only(3, 2, 4)
    assert all(len(set(steps)) == len(steps) == 8 for steps in schedule)
    assert {action.kind for steps in communicate(schedule, 2) for action in steps if isinstance(action, Action)} == {
        Kind.F
    }


@pytest.mark.parametrize("p, m", [(4, 8), (8, 8), (16, 64)])
def test_zero_bubble_gives_exactly_a_third(p, m):
    assert simulate_unit(zero_bubble(p, m), 1).bubble == pytest.approx((p - 1) / (3 * m))


def test_build_knows_every_name():
    assert [build(name, 3, 1, 4) for name in SCHEDULES] == [
        gpipe(3, 4),
        one_f_one_b(3, 4),
        interleaved(3, 1, 4),
        zero_bubble(3, 4),
    ]
    assert build("interleaved", 3, 2, 4) == interleaved(3, 2, 4)


@pytest.mark.parametrize(
    "args, words",
    [
        (("chimera", 2, 1, 4), "choose one of gpipe, 1f1b, interleaved, zero-bubble"),
        (("1f1b", 2, 2, 4), "use interleaved"),
        (("zero-bubble", 2, 3, 4), "use interleaved"),
        (("gpipe", 0, 1, 4), "pipeline stages"),
        (("interleaved", 2, 0, 4), "virtual stages a rank"),
        (("1f1b", 2, 1, 0), "microbatches"),
    ],
)
def test_build_refuses(args, words):
    with pytest.raises(ConfigError, match=words):
        build(*args)
