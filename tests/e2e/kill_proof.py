# SPDX-License-Identifier: Apache-2.0
"""Kills random ranks of a run at random moments, starts it again each time, and keeps account of what came of it.

A run that is killed any number of times must, each time, go on from the newest checkpoint that was finished, find every
byte of it readable, and end with the numbers of the run that nobody disturbed: each loss on the way and, bit for bit,
weights and optimizer.
"""

import contextlib
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from megatron_core.checkpoint.directory import has_manifest, read_manifest, step_directory, steps_present
from megatron_core.checkpoint.verify import verify
from megatron_core.errors import CheckpointError
from megatron_core.training.metrics import METRICS_FILE, read_metrics
from tests.e2e.live_run import LiveRun
from tests.e2e.same_run import differences

RANKS = 2
PATIENCE_S = 60.0
"""Ranks that live on after a kill get so long to end by themselves: five times their --distributed-timeout-minutes."""
_RUN_S = 600.0
_SAVE_S = 0.1
_POLL_S = 0.001
_LOADED = re.compile(r"loaded weights, optimizer and state from \S*step_(\d+)")

Moment = Literal["any", "saving"]
"""any: uniformly over the time that the run would still take, its start and evaluations included. saving: from when
the first rank writes to a random checkpoint on, for as long as a save may take."""


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A run to be killed again and again."""

    name: str
    flags: str
    """Of training, to the last step."""
    steps: int
    layouts: tuple[str, ...]
    """Flags of the layouts that its starts have in turn; of one alone, if bits are to be compared."""
    saving: str
    """Flags of saving; the directory is added."""
    eval_interval: int
    rtol: float = 0.0
    """How far losses, weights and moments may be from the straight run's; 0: bit for bit."""

    def command(self, start: int, save: Path) -> str:
        """All flags of a start, the first of which is number 0."""
        layout = self.layouts[start % len(self.layouts)]
        return (
            f"{self.flags} --train-iters {self.steps} --eval-interval {self.eval_interval} {layout} {self.saving} "
            f"--save {save} --load {save}"
        )


@dataclass(kw_only=True)
class Tally:
    """What has happened so far."""

    killed_while: Counter[str] = field(default_factory=Counter)
    """Kills by what the run was doing."""
    starts: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    """Exit codes of ranks that lived on after a kill."""
    slowest_end_s: float = 0.0
    """Longest time that such a rank took to end."""
    unfinished: int = 0
    """Directories without a manifest that kills left."""
    checked: int = 0
    """Finished checkpoints of which every byte was read after a kill."""
    unreadable: int = 0
    """Those of them that were damaged."""
    chosen: int = 0
    """Checkpoints that starts went on from."""
    wrongly_chosen: int = 0
    """Those of them that were not the newest that was finished."""
    started_new: int = 0
    """Starts at step 0, since nothing was finished."""
    finished: int = 0
    """Runs that came to their end."""
    problems: list[str] = field(default_factory=list)
    """A line for each thing that must not be."""

    @property
    def kills(self) -> int:
        """All of them."""
        return self.killed_while.total()


@dataclass(frozen=True)
class Pace:
    """How long a run takes where nobody disturbs it."""

    start_s: float
    """To the end of its first step."""
    step_s: float
    """From step to step, with what it saves and evaluates."""


def straight(victim: Victim, folder: Path) -> tuple[Path, Pace]:
    """Run a victim from start to end without a disturbance; where it has saved, and how long that took."""
    save = folder / "straight"
    with LiveRun(victim.command(0, save), RANKS, folder / "logs") as run:
        begin = time.monotonic()
        while run.lives and not _steps_done(save):
            time.sleep(_POLL_S)
        start_s = time.monotonic() - begin
        codes = run.wait(_RUN_S)
        assert codes == [0] * RANKS, f"the straight run ended with {codes}:\n{run.said()}"
    return save, Pace(start_s, (time.monotonic() - begin - start_s) / victim.steps)


class Killer:
    """One victim's run in one directory."""

    def __init__(self, victim: Victim, folder: Path, random_: random.Random, pace: Pace, tally: Tally) -> None:
        self._victim, self._random, self._pace, self._tally = victim, random_, pace, tally
        self._save, self._logs = folder / "killed", folder / "logs"
        self._starts = 0

    def kill(self, moment: Moment, rank: int | None = None) -> bool:
        """Start the run and kill a rank, any if None, at a random moment; False where the run ended before."""
        newest, done, tally = self._newest(), _steps_done(self._save), self._tally
        with self._start() as run:
            came = self._wait_for_any(run, done, newest) if moment == "any" else self._wait_for_saving(run, newest)
            rank = self._random.randrange(RANKS) if rank is None else rank
            came = came and run.kill(rank)
            if came:
                doing = self._doing(run)
                tally.killed_while[doing] += 1
                self._see_the_others_end(run, rank, doing)
            else:
                self._see_the_end(run)
            self._judge(run, newest)
        self._check_what_is_left()
        return came

    def finish(self, reference: Path) -> None:
        """Start the run once more, let it come to its end, and compare it with the straight one in `reference`."""
        newest, tally = self._newest(), self._tally
        with self._start() as run:
            self._see_the_end(run)
            self._judge(run, newest)
        self._check_what_is_left()
        tally.finished += 1
        for line in differences(self._save, reference, self._victim.steps, self._victim.rtol):
            self._problem(line)

    def _start(self) -> LiveRun:
        command = self._victim.command(self._starts, self._save)
        self._starts += 1
        self._tally.starts += 1
        return LiveRun(command, RANKS, self._logs)

    def _newest(self) -> int:
        """The newest step that a start has to go on from; 0: none."""
        return max((step for step in steps_present(self._save) if has_manifest(self._save, step)), default=0)

    def _wait_for_any(self, run: LiveRun, done: int, newest: int) -> bool:
        """`done`: lines of steps before this start."""
        pace = self._pace
        at = self._random.uniform(0, pace.start_s + pace.step_s * (self._victim.steps - newest))
        if at < pace.start_s:
            time.sleep(at)
            return run.lives
        steps, rest = divmod(at - pace.start_s, pace.step_s)
        while run.lives and _steps_done(self._save) < done + steps + 1:
            time.sleep(_POLL_S)
        time.sleep(rest)
        return run.lives

    def _wait_for_saving(self, run: LiveRun, newest: int) -> bool:
        step = newest + self._random.randint(1, max((self._victim.steps - newest) // 3, 1))
        # The next one too: steps may be done faster than they are looked at.
        while run.lives and not any(self._has_file_of(run, later) for later in (step, step + 1, step + 2)):
            time.sleep(_POLL_S)
        time.sleep(self._random.uniform(0, _SAVE_S))
        return run.lives

    def _has_file_of(self, run: LiveRun, step: int) -> bool:
        """Whether this start has written to a checkpoint."""
        with contextlib.suppress(FileNotFoundError):  # what an earlier start has left is cleaned meanwhile
            files = step_directory(self._save, step).glob("rank_*")
            return any(path.stat().st_mtime > run.started for path in files)
        return False

    def _doing(self, run: LiveRun) -> str:
        """What the run was at, by what is on the disk."""
        path = self._save / METRICS_FILE
        lines = read_metrics(path) if path.exists() and path.stat().st_mtime > run.started else []
        if not lines:
            return "starting"
        step = lines[-1]["step"]
        if any(self._has_file_of(run, at) and not has_manifest(self._save, at) for at in (step - 1, step)):
            return "saving"
        evaluates = step % self._victim.eval_interval == 0 and "loss" in lines[-1]
        return "evaluating" if evaluates else "training"

    def _see_the_others_end(self, run: LiveRun, killed: int, doing: str) -> None:
        begin = time.monotonic()
        try:
            codes = run.wait(PATIENCE_S)
        except TimeoutError as error:
            self._problem(f"killed while {doing}: {error}")
            return
        tally = self._tally
        tally.slowest_end_s = max(tally.slowest_end_s, time.monotonic() - begin)
        tally.codes.update(code for rank, code in enumerate(codes) if rank != killed)
        if any(code == 0 for rank, code in enumerate(codes) if rank != killed) and self._newest() < self._victim.steps:
            self._problem(f"killed while {doing}, but the others ended as if all was well: {codes}")

    def _see_the_end(self, run: LiveRun) -> None:
        codes = run.wait(_RUN_S)
        if codes != [0] * RANKS:
            self._problem(f"ended with {codes} though nobody was killed: {run.said()[-2000:]}")

    def _judge(self, run: LiveRun, newest: int) -> None:
        """Look at which checkpoint a start took, if it lived so long."""
        found = _LOADED.search(run.said())
        if found is None:
            if "starting new" in run.said():
                self._tally.started_new += 1
                if newest:
                    self._problem(f"started new, though there was step {newest}")
            return
        self._tally.chosen += 1
        if int(found[1]) != newest:
            self._tally.wrongly_chosen += 1
            self._problem(f"went on from step {int(found[1])}, though there was step {newest}")

    def _check_what_is_left(self) -> None:
        for step in steps_present(self._save):
            if not has_manifest(self._save, step):
                self._tally.unfinished += 1
                continue
            self._tally.checked += 1
            if problems := _damage(self._save, step):
                self._tally.unreadable += 1
                self._problem("; ".join(problems))

    def _problem(self, text: str) -> None:
        self._tally.problems.append(f"{self._victim.name}, start {self._starts}: {text}")


def _steps_done(save: Path) -> int:
    """Training steps that all starts together have reported, those done again counted again."""
    path = save / METRICS_FILE
    return sum("loss" in line for line in read_metrics(path)) if path.exists() else 0


def _damage(root: Path, step: int) -> list[str]:
    try:
        return [
            damage.problem for damage in verify(step_directory(root, step), read_manifest(root, step), lambda _: None)
        ]
    except CheckpointError as error:
        return [str(error)]
