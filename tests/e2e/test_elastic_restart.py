# SPDX-License-Identifier: Apache-2.0
"""torchrun starts all ranks anew when one dies: the run goes on from what it has saved, without being told to."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from megatron_core.training.metrics import METRICS_FILE, read_metrics
from tests.e2e.run_folder import assert_same_end, curve
from tests.e2e.test_command_line import MOCK, ending, finish, start
from tests.e2e.test_signal_cases import wait_for_step

STEPS = 400
RUN = f"{MOCK.replace('dropout 0', 'dropout 0.1')} --train-iters {STEPS} --save-interval 5 --most-recent-k 2"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")


@pytest.mark.slow
def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint_and_no_more(tmp_path: Path) -> None:
    straight, elastic = tmp_path / "straight", tmp_path / "elastic"
    code, said = finish(start(f"{RUN} --save {straight}", None, *TORCHRUN))
    assert code == 0, said
    process = start(f"{RUN} --save {elastic}", None, *TORCHRUN)
    wait_for_step(elastic, 60, [process])
    second_rank = psutil.Process(process.pid).children()[1]
    os.kill(second_rank.pid, signal.SIGKILL)
    code, said = finish(process)
    assert code == 0, said
    assert f"loaded weights, optimizer and state from {elastic}/step_" in said
    trained = [line["step"] for line in read_metrics(elastic / METRICS_FILE) if "loss" in line]
    assert trained.count(1) == 1 and len(trained) < STEPS + 40, "but for those since the checkpoint, none twice"
    assert curve(elastic) == curve(straight)
    assert_same_end(elastic, straight, STEPS)
    assert ending(elastic)["reason"] == "finished"
