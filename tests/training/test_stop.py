# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from megatron_core.config.training import TrainingConfig
from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.training.signals import SignalFlag
from megatron_core.training.stop import NO_VOTES, Stop, StopRequests, ask_all, decided, process_code
from tests.rank_pool import ranks

QUIET = SignalFlag(enabled=False)


def requests(training: TrainingConfig, *, rank: int = 0, started: float | None = None) -> StopRequests:
    return StopRequests(training, QUIET, rank=rank, started=time.monotonic() if started is None else started)


def test_nobody_asks() -> None:
    assert decided(requests(TrainingConfig()).votes()) is None


def test_the_kill_switch_is_a_file_that_rank_0_looks_for(tmp_path: Path) -> None:
    path = tmp_path / "stop"
    training = TrainingConfig(kill_switch_path=str(path))
    alone = single_process_context()
    first, other = requests(training), requests(training, rank=1)
    assert ask_all(first, alone) is None
    path.write_text("")
    assert ask_all(first, alone) is Stop.KILL_SWITCH
    assert ask_all(other, alone) is None
    assert Stop.KILL_SWITCH.describe(training) == f"kill_switch_path {path}"


def test_a_save_that_failed_is_a_reason_of_its_own() -> None:
    asking = requests(TrainingConfig())
    asking.save_failed = True
    assert decided(asking.votes()) is Stop.SAVE_FAILURE
    assert Stop.SAVE_FAILURE.describe(TrainingConfig()) == "stop_on_save_failure"
    assert decided(NO_VOTES) is None


def test_time_is_counted_from_the_start_of_the_process() -> None:
    training = TrainingConfig(exit_duration_in_mins=10.0)
    now = time.monotonic()
    assert decided(requests(training, started=now - 590).votes()) is None
    assert decided(requests(training, started=now - 601).votes()) is Stop.DURATION
    assert Stop.DURATION.describe(training) == "exit_duration_in_mins 10.0"


@pytest.mark.parametrize(
    "asked", [combination for n in (1, 2, 3, 4) for combination in itertools.combinations(Stop, n)]
)
def test_several_reasons_of_several_ranks_are_told_apart(asked: tuple[Stop, ...]) -> None:
    """Any number of ranks may ask for each, and the first in order of Stop is what all of them follow."""
    sums = [3.0 * (place + 1) if reason in asked else 0.0 for place, reason in enumerate(Stop)]
    assert decided(sums) is asked[0]


def test_who_asked_from_outside_is_told_by_the_code_whether_the_run_can_go_on() -> None:
    codes = {reason: (reason.exit_code(saved=True), reason.exit_code(saved=False)) for reason in Stop}
    assert codes == {
        Stop.KILL_SWITCH: (0, 0),
        Stop.SAVE_FAILURE: (1, 1),
        Stop.SIGTERM: (75, 1),
        Stop.SIGUSR1: (75, 1),
        Stop.SIGINT: (75, 1),
        Stop.DURATION: (0, 0),
    }
    assert Stop.SIGUSR1.describe(TrainingConfig()) == "SIGUSR1"


def test_torchrun_is_not_made_to_start_a_stopped_run_anew() -> None:
    assert [process_code(75, launcher) for launcher in ("torchrun", "srun", "alone")] == [0, 75, 75]
    assert [process_code(1, launcher) for launcher in ("torchrun", "srun", "alone")] == [1, 1, 1]


@ranks({"tp": 2}, {"pp": 2}, {"dp": 2})
def test_a_signal_to_one_rank_stops_all(ctx: ParallelContext) -> None:
    with SignalFlag(enabled=True) as signals:
        asking = StopRequests(TrainingConfig(), signals, rank=ctx.rank, started=0.0)
        assert ask_all(asking, ctx) is None
        if ctx.rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        assert ask_all(asking, ctx) is Stop.SIGTERM
