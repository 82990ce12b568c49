# SPDX-License-Identifier: Apache-2.0
"""Runs of which a rank is killed go on from the newest finished checkpoint and end as if nothing had been.

`benchmarks/chaos.py` does the same a hundred times.
"""

import random
from pathlib import Path

from tests.e2e.kill_proof import Killer, Tally, Victim, kill_and_finish, straight
from tests.e2e.live_run import TINY


def test_killed_ranks_cost_nothing_but_time(tmp_path: Path) -> None:
    victim = Victim(
        name="dp2",
        flags=f"{TINY} --eval-iters 1",
        steps=12,
        layouts=("",),
        saving="--save-interval 1 --most-recent-k 2",
        eval_interval=4,
    )
    reference, seconds = straight(victim, tmp_path)
    tally = Tally()
    killer = Killer(victim, tmp_path, random.Random(3), seconds, tally)
    kill_and_finish(killer, ["saving", "any", "saving", "saving"], reference)
    assert tally.problems == []
    print(tally)
