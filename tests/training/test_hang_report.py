# SPDX-License-Identifier: Apache-2.0
"""Every way in which ranks can be stuck, from records alone."""

import pytest

from megatron_core.parallel.collective_log import Call, Snapshot
from megatron_core.training.hang_report import Standing, decode, describe, encode, hang_report

LAST = Call("all_gather", "tp", "tp", 12, (0, 1))


def at(
    op: str, channel: str, number: int, *members: int, error: str | None = None, seconds: float = 61.2, **counts: int
) -> Standing:
    """A rank inside a call; `counts`: calls that it has begun elsewhere."""
    call = Call(op, channel.split()[0], channel, number, members)
    return Standing(
        snapshot=Snapshot(inside=call, inside_s=seconds, last=None, last_s=0.0, counts={**counts, channel: number}),
        error=error,
    )


def outside(error: str | None = None, last: Call | None = LAST, **counts: int) -> Standing:
    """A rank in no collective."""
    return Standing(snapshot=Snapshot(inside=None, inside_s=0.0, last=last, last_s=63.4, counts=counts), error=error)


@pytest.mark.parametrize("standing", [at("send", "pp 0>1", 3, 0, 1, dp=7), outside("closed", dp=2), outside(last=None)])
def test_a_standing_survives_its_text(standing: Standing) -> None:
    assert decode(encode(standing)) == standing


def test_one_rank_waits_for_one_that_computes() -> None:
    report = hang_report({0: outside(dp=531), 1: at("all_reduce", "dp", 532, 0, 1)}, 2)
    computing = "rank 0 is not in a collective (last: all_gather #12 of group tp (ranks 0, 1), 63 s ago)"
    assert report.lines[0] == computing
    assert report.lines[1] == f"rank 1 waits in all_reduce #532 of group dp (ranks 0, 1) for 61 s; {computing}"
    assert report.verdict == f"Others wait for rank 0: {computing}; its stacks say where it is."


def test_a_rank_that_started_its_part_and_computes_on_is_not_waited_for() -> None:
    report = hang_report({0: outside(dp=532), 1: at("all_reduce", "dp", 532, 0, 1)}, 2)
    assert report.lines[1].endswith("for 61 s")
    assert report.verdict == (
        "All members have joined all_reduce #532 of group dp (ranks 0, 1): the network or a device is stuck."
    )


def test_a_silent_rank_is_named_whether_or_not_it_is_waited_for() -> None:
    waiting = at("barrier", "world", 1, 0, 1, 2)
    report = hang_report({0: waiting, 2: waiting}, 3)
    assert report.lines[2].endswith("for 61 s; rank 1 did not answer: dead or stopped")
    assert report.verdict == "rank 1 did not answer: dead or stopped."
    assert set(report.lines) == {0, 2}
    assert hang_report({0: outside()}, 3).verdict == "ranks 1, 2 did not answer: dead or stopped."


def test_a_chain_leads_to_the_rank_that_waits_for_nobody() -> None:
    report = hang_report(
        {
            0: at("all_reduce", "tp", 4, 0, 1, dp=9),
            1: at("receive", "pp 2>1", 7, 2, 1, tp=3),
            2: outside(tp=4),
        },
        3,
    )
    assert "; rank 1 waits in receive #7 of group pp (2 to 1)" in report.lines[0]
    assert "; rank 2 is not in a collective" in report.lines[1]
    assert report.verdict.startswith("Others wait for rank 2: ") and "rank 0" not in report.verdict


def test_a_circle_of_different_groups() -> None:
    report = hang_report(
        {0: at("all_reduce", "dp", 3, 0, 1, tp=1), 1: at("all_gather", "tp", 2, 0, 1, dp=2), 2: outside(dp=3)}, 3
    )
    assert report.verdict == (
        "ranks 0, 1 wait for one another, in collectives that do not match: "
        "rank 0 waits in all_reduce #3 of group dp (ranks 0, 1) for 61 s; "
        "rank 1 waits in all_gather #2 of group tp (ranks 0, 1) for 61 s."
    )


def test_who_waits_for_a_circle_is_not_in_it() -> None:
    waiting = {
        0: at("barrier", "world", 1, 0, 1, 2),
        1: at("receive", "pp 2>1", 1, 2, 1),
        2: at("receive", "pp 1>2", 1, 1, 2),
    }
    assert hang_report(waiting, 3).verdict.startswith("ranks 1, 2 wait for one another")


def test_the_same_number_with_another_operation_does_not_match() -> None:
    report = hang_report({0: at("all_reduce", "tp", 5, 0, 1), 1: at("all_gather", "tp", 5, 0, 1)}, 2)
    assert report.verdict.startswith("ranks 0, 1 wait for one another, in collectives that do not match: ")


def test_both_ends_of_one_transfer_match() -> None:
    report = hang_report({0: at("send", "pp 0>1", 5, 0, 1), 1: at("receive", "pp 0>1", 5, 0, 1)}, 2)
    assert report.verdict == (
        "All members have joined receive #5 of group pp (0 to 1): the network or a device is stuck."
    )


def test_a_send_waits_for_who_has_not_posted_its_receive() -> None:
    report = hang_report({0: at("send", "pp 0>1", 5, 0, 1), 1: outside()}, 2)
    assert report.lines[0].startswith("rank 0 waits in send #5 of group pp (0 to 1) for 61 s; rank 1 is not in")


def test_a_failure_is_told_with_its_reason() -> None:
    failed = at("all_reduce", "dp", 2, 0, 1, error="Connection closed by peer")
    assert describe(1, failed) == ("rank 1 failed in all_reduce #2 of group dp (ranks 0, 1): Connection closed by peer")
    assert hang_report({1: failed}, 2).verdict == "rank 0 did not answer: dead or stopped."
    everyone = hang_report({0: at("all_reduce", "dp", 2, 0, 1), 1: failed}, 2)
    assert everyone.verdict == f"It began where {describe(1, failed)}."
    assert describe(0, outside("out of memory", last=None)) == (
        "rank 0 is not in a collective (it has called none yet) and failed: out of memory"
    )


def test_a_rank_that_was_only_slow() -> None:
    assert hang_report({0: outside(), 1: outside()}, 2).verdict == (
        "All ranks answered and none is in a collective any more: it was slow, not stuck."
    )


def test_thousands_of_ranks_are_counted_and_not_listed() -> None:
    world = tuple(range(2240))
    waiting = at("all_reduce", "world", 9, *world)
    answers = {rank: waiting for rank in world if rank not in (7, 8)} | {7: outside(), 8: outside()}
    report = hang_report(answers, 2240)
    assert "group world (ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (2240 ranks)) for 61 s; rank 7 is not" in report.lines[2000]
    assert report.verdict.count("Others wait for rank ") == 2
    assert max(map(len, report.lines.values())) < 1000 and len(report.verdict) < 1000
    half = hang_report(dict.fromkeys(world[:1000], waiting), 2240)
    assert (
        half.verdict
        == "ranks 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, ... (1240 ranks) did not answer: dead or stopped."
    )
    assert "; and 1232 more" in half.lines[0]
    idle = hang_report({rank: outside() for rank in world[1:]} | {0: waiting}, 2240)
    assert "They wait for 2231 more such ranks." in idle.verdict


@pytest.mark.parametrize(("seconds", "told"), [(0.44, "0.4 s"), (9.94, "9.9 s"), (61.2, "61 s")])
def test_seconds(seconds: float, told: str) -> None:
    assert describe(0, at("barrier", "dp", 1, 0, 1, seconds=seconds)).endswith(f"for {told}")
