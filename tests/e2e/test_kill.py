# SPDX-License-Identifier: Apache-2.0
"""Runs of which a rank is killed go on from the newest finished checkpoint and end as if nothing had been.

`benchmarks/chaos.py` does the same a hundred times, in several layouts and while runs start, too.
"""

import random
from pathlib import Path

from tests.e2e.kill_proof import Killer, Moment, Tally, Victim, straight
from tests.e2e.live_run import TINY

SEED = 30
"""With it no rank is killed before the ranks have met: the others would wait for it."""


def test_killed_ranks_cost_nothing_but_time(tmp_path: Path) -> None:
    victim = Victim(
        name="dp 2",
        flags=f"{TINY} --eval-iters 1",
        steps=14,
        layouts=("",),
        saving="--save-interval 2 --most-recent-k 2",
        eval_interval=4,
    )
    reference, pace = straight(victim, tmp_path)
    tally = Tally()
    killer = Killer(victim, tmp_path, random.Random(SEED), pace, tally)
    # Rank 0 would wait for what rank 1 has to report of a save, as long as for any collective.
    kills: list[tuple[Moment, int]] = [("saving", 0), ("any", 1), ("saving", 0), ("saving", 0)]
    for moment, rank in kills:
        if not killer.kill(moment, rank):
            break  # the run was faster
    killer.finish(reference)
    assert tally.problems == []
    assert tally.kills and tally.chosen and tally.finished == 1, tally
