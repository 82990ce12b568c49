# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.config.step_ranges import StepRanges, parse_step_ranges


def test_both_ends_belong_to_a_range():
    steps = parse_step_ranges(("7", "40701-40900"))
    assert steps == StepRanges(((7, 7), (40701, 40900)))
    assert [step for step in (6, 7, 8, 40700, 40701, 40800, 40900, 40901) if steps.contains(step)] == [
        7,
        40701,
        40800,
        40900,
    ]


def test_no_words_name_no_step():
    assert not parse_step_ranges(()).contains(1)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("", "'' is neither a step N nor a range N-M"),
        ("1,5", "'1,5' is neither a step N nor a range N-M"),
        ("-3", "'-3' is neither a step N nor a range N-M"),
        ("3-", "'3-' is neither a step N nor a range N-M"),
        ("0", "'0' begins at step 0; the first step is 1"),
        ("9-3", "'9-3' ends before it begins; write 3-9"),
    ],
)
def test_what_is_wrong_is_said(word, message):
    with pytest.raises(ValueError, match=rf"^{message}$"):
        parse_step_ranges(("1", word))
