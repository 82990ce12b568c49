# SPDX-License-Identifier: Apache-2.0
"""Flips bits in the newest of a run's checkpoints, one at a time, and keeps account of what loading made of it."""

import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.bit_flips import Flip, Loaded, draw, is_found, load_rank
from tests.e2e.live_run import TINY, LiveRun
from tests.rank_pool import run_ranks

RANKS = 2
LAYOUTS = ("", "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2")
SAVED = (2, 4, 6)
_RUN_S = 120.0


@dataclass(kw_only=True)
class FlipTally:
    """What has happened so far."""

    fallen_back: Counter[str] = field(default_factory=Counter)
    """Flips after which an older checkpoint was loaded, by place."""
    refused: Counter[str] = field(default_factory=Counter)
    """Those after which none was left."""
    unread: Counter[str] = field(default_factory=Counter)
    """Those in bytes that the load had no use for: it has the right numbers."""
    problems: list[str] = field(default_factory=list)
    """A line for each thing that must not be."""

    @property
    def flips(self) -> int:
        """All of them."""
        return (self.fallen_back + self.refused + self.unread).total()


class Flipper:
    """The checkpoints of one run, in which bits are flipped."""

    def __init__(self, folder: Path, flags: str, random_: random.Random, tally: FlipTally) -> None:
        """Trains with `flags` on two tensor-parallel ranks, and saves to `folder`."""
        self._random, self._tally = random_, tally
        self._root, self._has_masters = folder / "save", "--bf16" in flags
        self._flags = f"{TINY} --train-iters {SAVED[-1]} {flags}"
        saving = f"{LAYOUTS[1]} --save {self._root} --save-interval {SAVED[0]}"
        with LiveRun(f"{self._flags} {saving}", RANKS, folder / "logs") as run:
            codes = run.wait(_RUN_S)
            assert codes == [0] * RANKS, f"the run to be damaged ended with {codes}:\n{run.said()}"
        self._digests: dict[tuple[str, int], list[str]] = {}

    def flip(self, *, weights_only: bool = False, all_steps: bool = False) -> None:
        """Flip a bit of the newest checkpoint, or one of each that there is; load, judge, and put it back."""
        load = self._random.choice(LAYOUTS) + (" --no-load-optim" if weights_only else "")
        flips = [draw(self._root, step, self._random) for step in (SAVED if all_steps else SAVED[-1:])]
        with contextlib.ExitStack() as stack:
            for flip in flips:
                stack.enter_context(flip.done())
            found = self._load(load)
            missed = [flip for flip in flips if not is_found(self._root, flip.step)]
        tally, place = self._tally, flips[-1].place
        step = found[0].step
        count = tally.refused if step is None else tally.unread if step == SAVED[-1] else tally.fallen_back
        count[place] += 1
        problems = [f"not found by reading all: {flip}" for flip in missed] + self._wrong(found, load, flips)
        tally.problems += [f"{line}; flipped: {flips}; loaded with {load!r}" for line in problems]

    def _wrong(self, found: Sequence[Loaded], load: str, flips: Sequence[Flip]) -> list[str]:
        """What must not be about what the ranks have loaded."""
        step = found[0].step
        if any(rank.step != step for rank in found):
            return [f"the ranks have loaded steps {[rank.step for rank in found]}"]
        needed = {flip.step for flip in flips if self._is_needed(flip.place, load)}
        expected = max(set(SAVED) - needed, default=None)
        if step != expected:
            return [f"step {step} was loaded, not {expected}: {found}"]
        said = " ".join([*found[0].said, found[0].digest])  # the latter is the error, where there is one
        names = {bad: (f"the checkpoint of step {bad} cannot be read", f"step_{bad:08d}/") for bad in needed}
        silent = [bad for bad in needed if bad > (step or 0) and not any(name in said for name in names[bad])]
        problems = [f"nothing was said about step {bad}: {said}" for bad in silent]
        if step is not None and [rank.digest for rank in found] != self._digests_of(load, step):
            problems.append(f"what was loaded is not what was saved at step {step}")
        return problems

    def _is_needed(self, place: str, load: str) -> bool:
        """Whether a load has a use for the bytes of a place."""
        if "--no-load-optim" in load:
            return place in ("manifest", "header", "model")
        return place != "model" or not self._has_masters

    def _digests_of(self, load: str, step: int) -> list[str]:
        """What the ranks have when nothing is flipped."""
        if (load, step) not in self._digests:
            found = self._load(f"{load} --ckpt-step {step}")
            assert all(rank.step == step for rank in found), found
            self._digests[load, step] = [rank.digest for rank in found]
        return self._digests[load, step]

    def _load(self, flags: str) -> list[Loaded]:
        return run_ranks(load_rank, RANKS, f"{self._flags} {flags} --load {self._root}")
