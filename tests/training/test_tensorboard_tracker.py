# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_core.errors import ConfigError
from megatron_core.training.tensorboard_tracker import TensorBoardTracker


def test_events_read_back(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(str(tmp_path), queue_size=10)
    for step in (1, 2, 3):
        tracker.log({"loss": 4.0 / step, "lr": 0.5}, step)
    tracker.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["loss", "lr"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [
        (1, 4.0),
        (2, 2.0),
        (3, pytest.approx(4 / 3)),
    ]


def test_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        TensorBoardTracker(str(tmp_path), queue_size=10)
