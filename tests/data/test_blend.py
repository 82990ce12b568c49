# SPDX-License-Identifier: Apache-2.0
"""Blend counts stay near weight × n at every prefix, and the closed form is the sequence that it counts."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_core.data.blend import Blend, BlendCurriculum, exact_weight
from megatron_core.errors import DataError

MT_NLG = (0.14336, 0.19336, 0.05689, 0.02897, 0.04771, 0.00873, 0.01007, 0.00208)
MT_NLG += (0.09446, 0.01359, 0.01588, 0.13017, 0.15652, 0.08962, 0.00859)
"""Shares of MT-NLG's 15 corpora as its launch scripts give them (arXiv:2201.11990, table 1, has them in per cent)."""

MT_NLG_PERCENT = (14.3, 19.3, 5.7, 2.9, 4.8, 0.9, 1.0, 0.2, 9.4, 1.4, 1.6, 13.0, 15.7, 9.0, 0.9)

weights_of = st.lists(st.integers(1, 10**6), min_size=1, max_size=20)


def worst_drift(blend: Blend, samples: int) -> Fraction:
    """Largest |count − weight × n| over all data sets and prefixes, counted by walking the sequence."""
    counts, worst = [0] * len(blend.weights), Fraction(0)
    for n in range(samples):
        dataset, index = blend.locate(n)
        assert index == counts[dataset], "numbers within a data set must go up by one"
        counts[dataset] += 1
        worst = max(worst, *(abs(c - w * (n + 1)) for c, w in zip(counts, blend.weights)))
        assert blend.counts(n + 1) == tuple(counts)
    return worst


@pytest.mark.parametrize("weights", [MT_NLG, MT_NLG_PERCENT])
def test_mt_nlg_stays_within_one(weights: tuple[float, ...]) -> None:
    assert worst_drift(Blend(weights), 4000) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "period"), [(MT_NLG, 100_000), (MT_NLG_PERCENT, 1001)])
def test_mt_nlg_stays_within_one_over_a_whole_period(weights: tuple[float, ...], period: int) -> None:
    """After a period the ideal counts are whole, so the sequence starts again: this proves every prefix."""
    blend = Blend(weights)
    assert all((period * weight).denominator == 1 for weight in blend.weights)
    assert worst_drift(blend, period) <= 1


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_two_stay_within_one(first: int, second: int) -> None:
    assert worst_drift(Blend([first, second]), 300) <= 1


@settings(deadline=None, max_examples=25)
@given(weights_of)
def test_any_weights_stay_within_two(weights: list[int]) -> None:
    assert worst_drift(Blend(weights), 300) <= 2


@settings(deadline=None, max_examples=100)
@given(weights_of, st.integers(0, 10**15))
def test_far_prefixes_stay_within_two(weights: list[int], n: int) -> None:
    blend = Blend(weights)
    counts = blend.counts(n)
    assert sum(counts) == n
    assert max(abs(c - w * n) for c, w in zip(counts, blend.weights)) <= 2


def test_shares_of_samples_whatever_their_scale() -> None:
    assert Blend([0.3, 0.7]).counts(100) == (30, 70)
    assert Blend([0.001, 0.999]).counts(1000) == (1, 999)
    assert Blend([0.001, 0.999]).counts(100) in {(0, 100), (1, 99)}
    tenth, one = Blend(["0.1", "0.9"]), Blend(["1", "9"])
    assert [tenth.locate(n) for n in range(200)] == [one.locate(n) for n in range(200)]
    assert Blend([0.1, 0.9]).weights == tenth.weights


def test_the_order_does_not_depend_on_the_length_of_the_run() -> None:
    blend = Blend([5, 3, 2])
    assert [blend.locate(n) for n in range(10)] == [blend.locate(n) for n in range(20)][:10]


def test_fibonacci_weights_make_a_deep_tree() -> None:
    weights = [1, 1]
    while len(weights) < 400:
        weights.append(weights[-1] + weights[-2])
    assert sum(Blend(weights).counts(10**6)) == 10**6


@pytest.mark.parametrize("weights", [["-1", "2"], ["nan", "1"], ["inf", "1"], ["x", "1"], [0, 0], []])
def test_bad_weights_are_refused(weights: list) -> None:
    with pytest.raises(DataError):
        Blend(weights)


def test_weights_are_read_as_written() -> None:
    assert exact_weight(0.1) == exact_weight("0.1") == exact_weight(" 1e-1 ") == Fraction(1, 10)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(0, 9), min_size=3, max_size=3)), min_size=1, max_size=4)
)
def test_a_curriculum_goes_on_where_the_segment_before_stopped(segments: list[tuple[int, list[int]]]) -> None:
    starts = [sum(length for length, _ in segments[:k]) for k in range(len(segments))]
    blends = [Blend([w + (i == 0) for i, w in enumerate(weights)]) for _, weights in segments]
    curriculum = BlendCurriculum(tuple(starts), tuple(blends))
    counts = [0, 0, 0]
    for n in range(starts[-1] + 60):
        assert curriculum.counts(n) == tuple(counts)
        dataset, index = curriculum.locate(n)
        assert index == counts[dataset]
        counts[dataset] += 1


def test_a_set_may_come_in_later() -> None:
    curriculum = BlendCurriculum((0, 10), (Blend([1, 0]), Blend([1, 1])))
    assert curriculum.counts(10) == (10, 0)
    assert curriculum.counts(30) == (20, 10)


@pytest.mark.parametrize("starts", [(5,), (0, 0), (0, 9, 3), ()])
def test_bad_curricula_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(DataError):
        BlendCurriculum(starts, tuple(Blend([1, 1]) for _ in starts))
    with pytest.raises(DataError, match="one weight for every"):
        BlendCurriculum((0, 1), (Blend([1]), Blend([1, 1])))
