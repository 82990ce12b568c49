# SPDX-License-Identifier: Apache-2.0
"""Every kind of fault is found and pointed at. Programs are written as they print."""

import re

import pytest

from megatron_core.pipeline.action import Action, Exchange, Transfer
from megatron_core.pipeline.check import Report, ScheduleError, check
from megatron_core.pipeline.communicate import communicate
from megatron_core.pipeline.schedules import interleaved, one_f_one_b, zero_bubble


def parse(line):
    """Inverse of printing the steps of a stage."""
    steps = []
    for word in re.findall(r"\[[^]]*\]|\S+", line):
        if word.startswith("["):
            parts = re.findall(r"([AG])(\d+)\.(\d+)([<>])(\d+)", word)
            steps.append(
                Exchange(
                    tuple(
                        Transfer(way == ">", int(peer), {"A": "activation", "G": "gradient"}[what], int(i), int(chunk))
                        for what, i, chunk, way, peer in parts
                    )
                )
            )
        else:
            steps.append(Action.parse(word))
    return tuple(steps)


GOOD = (
    "F0.0 [A0.0>1] F1.0 [A1.0>1] [G0.0<1] B0.0 [G1.0<1] B1.0",
    "[A0.0<0] F0.0 [A1.0<0] B0.0 [G0.0>0] F1.0 B1.0 [G1.0>0]",
)


def test_a_good_program_is_measured():
    report = check(tuple(map(parse, GOOD)), 2, 1, 2)
    assert report == Report(peak_live=(2, 1), peak_full=(2, 1), sends=(2, 2))


def test_live_activations_of_split_backwards():
    report = check(communicate(zero_bubble(4, 8), 1), 4, 1, 8)
    assert report.peak_live == (4, 4, 4, 4)
    assert report.peak_full == (4, 3, 2, 1)


@pytest.mark.parametrize(
    "stage, old, new, words",
    [
        (0, "F1.0 [A1.0>1]", "F0.0 [A1.0>1]", r"stage 0, step 2: F0\.0 is out of order: microbatch 1 is due"),
        (0, " B1.0", "", r"only 1 of 2 I have run for chunk 0(.|\n)*--> end"),
        (0, " B1.0", " I1.0", r"only 1 of 2 W have run for chunk 0"),
        (0, " B1.0", " W1.0 I1.0", r"W1\.0 runs before its input gradient I"),
        (0, " B1.0", " B1.0 B2.0", r"B2\.0 is out of order: all 2 microbatches have run"),
        (0, " B1.0", " B1.1", r"B1\.1 names a chunk outside 0\.\.0"),
        (1, "F1.0 B1.0", "B1.0 F1.0", r"B1\.0 runs before its forward F"),
        (0, "[A1.0>1]", "[A0.0>1]", r"send 1 to stage 1 is A0\.0>1, but that stage expects A1\.0<0"),
        (0, "[A1.0>1]", "[G1.0>1]", r"send 1 to stage 1 is G1\.0>1, but that stage expects A1\.0<0"),
        (0, " [A1.0>1]", "", r"1 sends from stage 0 to 1 meet 2 receives(.|\n)*--> \[A1\.0<0\]"),
        (1, " [G1.0>0]", "", r"1 sends from stage 1 to 0 meet 2 receives"),
        (1, "[A1.0<0]", "[]", r"2 sends from stage 0 to 1 meet 1 receives(.|\n)*--> \[A1\.0>1\]"),
        (0, "[A1.0>1]", "[A1.0>2]", r"A1\.0>2 names no other stage of 2"),
        (0, "[A1.0>1]", "[A1.0>0]", r"A1\.0>0 names no other stage of 2"),
        (0, "F0.0 [A0.0>1]", "[A0.0>1] F0.0", r"A0\.0>1 is sent before it is made"),
        (1, "[A0.0<0] F0.0", "F0.0 [A0.0<0]", r"F0\.0 runs without the outcome of F0 of virtual stage 0"),
        (0, "[G0.0<1] B0.0", "B0.0 [G0.0<1]", r"B0\.0 runs without the outcome of I0 of virtual stage 1"),
        (
            1,
            "[A1.0<0] B0.0 [G0.0>0]",
            "B0.0 [G0.0>0] [A1.0<0]",
            r"deadlock(.|\n)*--> \[A1\.0>1\](.|\n)*--> \[G0\.0>0\]",
        ),
    ],
)
def test_faults_are_found_and_shown(stage, old, new, words):
    lines = list(GOOD)
    assert old in lines[stage]
    lines[stage] = lines[stage].replace(old, new)
    with pytest.raises(ScheduleError, match=words) as raised:
        check(tuple(map(parse, lines)), 2, 1, 2)
    assert "-->" in str(raised.value)


def test_a_wrong_number_of_stages():
    with pytest.raises(ScheduleError, match="2 stages where p is 3"):
        check(tuple(map(parse, GOOD)), 3, 1, 2)


def test_microbatches_that_were_never_scheduled():
    with pytest.raises(ScheduleError, match="only 2 of 3 F have run"):
        check(tuple(map(parse, GOOD)), 2, 1, 3)


def test_chunks_that_are_swapped_are_noticed():
    """The payload and microbatch agree, but it is the output of another chunk."""
    first, last = communicate(interleaved(2, 2, 1), 2)
    line = " ".join(map(str, last)).replace("[A0.1<0]", "[A0.0<0]")
    with pytest.raises(ScheduleError, match=r"send 1 to stage 1 is A0\.1>1, but that stage expects A0\.0<0"):
        check((first, parse(line)), 2, 2, 1)


def test_long_programs_are_shown_around_the_fault():
    program = communicate(one_f_one_b(4, 32), 1)
    broken = (*program[:2], program[2][:-1], program[3])
    with pytest.raises(ScheduleError) as raised:
        check(broken, 4, 1, 32)
    lines = str(raised.value).splitlines()
    assert len(lines) == 1 + 4
    assert max(map(len, lines)) < 200
    assert "--> [G31.0<2]" in lines[2]  # stage 1 waits for the gradient that stage 2 does not send
