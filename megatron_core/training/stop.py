# SPDX-License-Identifier: Apache-2.0
"""Why a run is asked to stop, and how all ranks come to know of what only one was told.

Every rank votes, one slot a reason; the sum of all ranks' votes travels with sums that a step needs anyway (or in a
small all-reduce of its own, between batches of an evaluation) and means the same to each of them.
"""

import os
import signal
import time
from collections.abc import Sequence
from enum import Enum
from typing import Literal

import torch

from megatron_core.config.training import TrainingConfig
from megatron_core.parallel.collectives import all_reduce
from megatron_core.parallel.context import ParallelContext
from megatron_core.training.signals import SignalFlag

EXIT_DONE, EXIT_OTHER, EXIT_SAVED_ON_SIGNAL = 0, 1, 75


class Stop(Enum):
    """A reason to stop. Of several at once the first here counts: who ends a run for good wants no new start of it, and
    a scheduler's warning asks for one, though the run's own time was up as well."""

    KILL_SWITCH = "kill_switch_path"
    SAVE_FAILURE = "stop_on_save_failure"
    SIGTERM = "SIGTERM"
    SIGUSR1 = "SIGUSR1"
    SIGINT = "SIGINT"
    DURATION = "exit_duration_in_mins"

    @property
    def is_signal(self) -> bool:
        """Whether something outside asked, which will want to start the run anew."""
        return self in (Stop.SIGTERM, Stop.SIGUSR1, Stop.SIGINT)

    def exit_code(self, *, saved: bool) -> int:
        """The code of exit.json; `saved`: there is a checkpoint of the last step."""
        if self.is_signal:
            return EXIT_SAVED_ON_SIGNAL if saved else EXIT_OTHER
        return EXIT_OTHER if self is Stop.SAVE_FAILURE else EXIT_DONE

    def describe(self, training: TrainingConfig) -> str:
        """The reason with its setting, for exit.json and the log."""
        if self.is_signal or self is Stop.SAVE_FAILURE:
            return self.value
        setting = training.kill_switch_path if self is Stop.KILL_SWITCH else training.exit_duration_in_mins
        return f"{self.value} {setting}"


def process_code(code: int, launcher: Literal["torchrun", "srun", "alone"]) -> int:
    """The code that a rank's process leaves with: torchrun would take a 75 for a failure and start all ranks anew."""
    return EXIT_DONE if code == EXIT_SAVED_ON_SIGNAL and launcher == "torchrun" else code


NO_VOTES = (0.0,) * len(Stop)
"""Of a rank that knows no reason to stop."""


class StopRequests:
    """What this rank knows of reasons to stop, each time it is asked."""

    def __init__(self, training: TrainingConfig, signals: SignalFlag, *, rank: int, started: float) -> None:
        """`started`: time.monotonic() when the process began."""
        self._signals = signals
        # One rank asks the file system: a thousand that do would see a new file at different steps and be a load.
        self._kill_switch = training.kill_switch_path if rank == 0 else None
        minutes = training.exit_duration_in_mins
        self._deadline = None if minutes is None else started + 60 * minutes
        self.save_failed = False
        """Set where a checkpoint could not be written and the run shall not go on without."""

    def votes(self) -> list[float]:
        """1.0 in the slot of each reason that this rank has now."""
        asked = {
            Stop.KILL_SWITCH: self._kill_switch is not None and os.path.exists(self._kill_switch),
            Stop.SAVE_FAILURE: self.save_failed,
            Stop.SIGTERM: self._signals.received is signal.SIGTERM,
            Stop.SIGUSR1: self._signals.received is signal.SIGUSR1,
            Stop.SIGINT: self._signals.received is signal.SIGINT,
            Stop.DURATION: self._deadline is not None and time.monotonic() >= self._deadline,
        }
        return [float(asked[reason]) for reason in Stop]


def decided(sums: Sequence[float]) -> Stop | None:
    """What the votes of all ranks, added up, come to."""
    return next((reason for reason, votes in zip(Stop, sums, strict=True) if votes > 0), None)


def ask_all(requests: StopRequests, ctx: ParallelContext) -> Stop | None:
    """Vote in a collective of its own: before training and between batches of an evaluation. All ranks must call."""
    votes = torch.tensor(requests.votes(), dtype=torch.float64, device=ctx.device)
    return decided(all_reduce(votes, ctx.world).tolist())
