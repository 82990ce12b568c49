# SPDX-License-Identifier: Apache-2.0
"""Kills a training run a hundred times, and flips a hundred bits in its checkpoints: nothing may be lost by it.

    python -m benchmarks.chaos [--kills 100] [--flips 100] [--seed 1] [--folder DIR]

Tiny runs of two ranks in several layouts, saving at every step or every second one. `kill -9` of a random rank at a
random moment, half of them while a checkpoint is written; the other rank must end by itself; the same command is
started again and goes on. Every checkpoint that a kill leaves finished is read to its last byte, and every run that
comes to its end is compared with one that nobody disturbed: bit for bit, but for the one whose layout changes at each
start, which is held to 1e-10 in fp64. A flipped bit must be found and an older checkpoint taken, by all ranks.

Prints tables; exits with 1 where anything was not as it must be. Same seed, same draws; how far a run has come at a
moment is the machine's.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.flip_proof import Flipper, FlipTally
from tests.e2e.kill_proof import Killer, Moment, Tally, Victim, straight
from tests.e2e.live_run import TINY

KILLS_A_RUN = 8
MOMENTS: tuple[Moment, ...] = ("any", "saving")
FLAGS = f"{TINY} --eval-iters 1"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
VICTIMS = (
    Victim(name="dp 2, keep 1", flags=FLAGS, steps=24, layouts=("",), eval_interval=4,
           saving="--save-interval 1 --most-recent-k 1"),
    Victim(name="tp 2, keep all", flags=FLAGS, steps=24, layouts=(TP2,), eval_interval=4,
           saving="--save-interval 1"),
    Victim(name="pp 2, keep 2 and every 8th", flags=FLAGS, steps=24, layouts=(PP2,), eval_interval=4,
           saving="--save-interval 2 --most-recent-k 2 --save-retain-interval 8"),
    Victim(name="dp 2, not async", flags=FLAGS, steps=24, layouts=("",), eval_interval=4,
           saving="--save-interval 1 --no-async-save --most-recent-k 1"),
    Victim(name="dp 2, tp 2, pp 2 in turn, fp64", flags=f"{FLAGS} --fp64", steps=24, layouts=("", TP2, PP2),
           eval_interval=4, saving="--save-interval 1 --most-recent-k 2", rtol=1e-10),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, help="where runs save; default: a temporary directory, removed at the end"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos_", dir=given.folder) as folder:
        flip_tally = flips(given.flips, random.Random(given.seed), Path(folder))
        print_flips(flip_tally)
        tally = kills(given.kills, random.Random(given.seed), Path(folder))
        print_kills(tally)
    return 1 if tally.problems or flip_tally.problems else 0


def flips(wanted: int, random_: random.Random, folder: Path) -> FlipTally:
    """Flip so many bits, in checkpoints with and without masters; now and then one in each checkpoint that there is."""
    tally, begin = FlipTally(), time.monotonic()
    flippers = [Flipper(folder / f"flips{flags}", flags, random_, tally) for flags in ("", "--bf16")]
    while tally.flips < wanted:
        kind = tally.flips % 10
        flippers[tally.flips % 2].flip(weights_only=kind in (6, 7), all_steps=kind in (8, 9))
        if tally.flips % 10 == 0:
            seconds = time.monotonic() - begin
            eta = seconds / tally.flips * (wanted - tally.flips)
            print(f"{tally.flips}/{wanted} flips | {len(tally.problems)} problems | eta {eta:.0f} s", flush=True)
    return tally


def print_flips(tally: FlipTally) -> None:
    """The account of all flips, and every problem."""
    counts = {
        "found, an older checkpoint loaded": tally.fallen_back,
        "found, nothing left to load": tally.refused,
        "not read and so without effect": tally.unread,
    }
    rows: list[tuple[str, object]] = [("loads after a flip", tally.flips)]
    for outcome, count in counts.items():
        rows.append((outcome, count.total()))
        rows += [(f"  bit in {place}", number) for place, number in sorted(count.items())]
    print_table(rows, tally.problems)


def kills(wanted: int, random_: random.Random, folder: Path) -> Tally:
    """Kill the victims in turn, each run a few times before it may finish, until there are so many."""
    tally, begin, references = Tally(), time.monotonic(), {}
    victims = VICTIMS[: max(min(len(VICTIMS), wanted // KILLS_A_RUN), 1)]
    for number, victim in enumerate(victims):
        references[victim.name] = straight(victim, folder / f"straight_{number}")
        pace = references[victim.name][1]
        print(f"{victim.name}: {pace.start_s:.2f} s to start, {pace.step_s:.3f} s a step", flush=True)

    told: list[str] = []

    def report() -> None:
        for problem in tally.problems[len(told) :]:
            print(problem, flush=True)
            told.append(problem)
        seconds = time.monotonic() - begin
        eta = seconds / tally.kills * (wanted - tally.kills)
        done = f"{tally.kills}/{wanted} kills | {tally.finished} runs finished | {len(tally.problems)} problems"
        print(f"{done} | {seconds:.0f} s, eta {eta:.0f} s", flush=True)

    number = 0
    while tally.kills < wanted:
        victim = victims[number % len(victims)]
        reference, pace = references[victim.name]
        moments = [random_.choice(MOMENTS) for _ in range(min(KILLS_A_RUN, wanted - tally.kills))]
        killer = Killer(victim, folder / f"run_{number}", random_, pace, tally)
        for moment in moments:
            if not killer.kill(moment):
                break
            report()
        killer.finish(reference)
        number += 1
    return tally


def print_kills(tally: Tally) -> None:
    """The account of all kills, and every problem."""
    rows: list[tuple[str, object]] = [("kills", tally.kills)]
    rows += [(f"  while {doing}", count) for doing, count in sorted(tally.killed_while.items())]
    rows += [(f"ranks that then left with {code}", count) for code, count in sorted(tally.codes.items())]
    rows.append(("slowest of them, s", f"{tally.slowest_end_s:.1f}"))
    rows.append(("starts", tally.starts))
    rows.append(("  from step 0, nothing being finished", tally.started_new))
    rows.append(("  from a checkpoint", tally.chosen))
    rows.append(("  from another than the newest finished", tally.wrongly_chosen))
    rows.append(("unfinished directories seen after kills", tally.unfinished))
    rows.append(("finished checkpoints read after kills", tally.checked))
    rows.append(("  unreadable", tally.unreadable))
    rows.append(("runs finished and compared", tally.finished))
    print_table(rows, tally.problems)


def print_table(rows: Sequence[tuple[str, object]], problems: Sequence[str]) -> None:
    """Two columns, and a line for each problem."""
    print()
    for name, value in [*rows, ("problems", len(problems))]:
        print(f"{name:<45}{value!s:>8}")
    print("".join(f"{problem}\n" for problem in problems))


if __name__ == "__main__":
    sys.exit(main())
