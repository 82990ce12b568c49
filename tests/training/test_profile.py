# SPDX-License-Identifier: Apache-2.0
import json
from pathlib import Path

import pytest
import torch

from megatron_core.config.training import TrainingConfig
from megatron_core.errors import ConfigError
from megatron_core.training.profile import ProfileWindow

TRAINING = TrainingConfig(profile=True, profile_step_start=3, profile_step_end=5, profile_ranks=(0, 2))


def run(window: ProfileWindow, steps: range) -> None:
    for step in steps:
        window.before_step(step)
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(2).add_(1)
        window.after_step(step)
    window.close()


def recorded_steps(path: Path) -> set[str]:
    return {e["name"] for e in json.loads(path.read_text())["traceEvents"] if e.get("name", "").startswith("step ")}


def test_records_the_window_and_nothing_else(tmp_path: Path) -> None:
    run(ProfileWindow(TRAINING, str(tmp_path), rank=2, cuda=False), range(1, 8))
    assert recorded_steps(tmp_path / "profile" / "rank2.json") == {"step 3", "step 4"}


def test_writes_what_there_is_when_the_run_ends_or_starts_within_the_window(tmp_path: Path) -> None:
    run(ProfileWindow(TRAINING, str(tmp_path), rank=0, cuda=False), range(1, 4))
    assert recorded_steps(tmp_path / "profile" / "rank0.json") == {"step 3"}
    run(ProfileWindow(TRAINING, str(tmp_path), rank=0, cuda=False), range(4, 9))
    assert recorded_steps(tmp_path / "profile" / "rank0.json") == {"step 4"}


@pytest.mark.parametrize(("training", "rank"), [(TrainingConfig(), 0), (TRAINING, 1)])
def test_others_record_nothing(tmp_path: Path, training: TrainingConfig, rank: int) -> None:
    run(ProfileWindow(training, str(tmp_path), rank, cuda=False), range(1, 8))
    assert list(tmp_path.iterdir()) == []


def test_needs_a_place_to_write_to() -> None:
    with pytest.raises(ConfigError, match="set --save"):
        ProfileWindow(TRAINING, None, rank=1, cuda=False)
    ProfileWindow(TrainingConfig(), None, rank=0, cuda=False).close()
