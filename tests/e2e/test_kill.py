# SPDX-License-Identifier: Apache-2.0
"""Runs of which a rank is killed go on from the newest finished checkpoint and end as if nothing had been.

`benchmarks/chaos.py` does the same a hundred times, in several layouts and while runs start, too.
"""

import random
from pathlib import Path

from tests.e2e.kill_proof import Killer, Tally, Victim, kill_and_finish, straight
from tests.e2e.live_run import TINY


def test_killed_ranks_cost_nothing_but_time(tmp_path: Path) -> None:
    victim = Victim(
        name="dp 2",
        flags=f"{TINY} --eval-iters 1",
        steps=14,
        layouts=("",),
        saving="--save-interval 1 --most-recent-k 2",
        eval_interval=4,
    )
    reference, pace = straight(victim, tmp_path)
    tally = Tally()
    # With this seed, no rank is killed before the ranks have met: the others would wait for it.
    killer = Killer(victim, tmp_path, random.Random(114), pace, tally)
    kill_and_finish(killer, ["saving", "any", "saving", "saving"], reference)
    assert tally.problems == []
    assert tally.kills and tally.chosen and tally.finished == 1, tally
