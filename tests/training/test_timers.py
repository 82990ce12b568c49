# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest
import torch

from megatron_core.training.timers import Timers

CPU = torch.device("cpu")


def ticking(log_level: int) -> Timers:
    """Timers whose clock moves one second a reading."""
    ticks = itertools.count()
    return Timers(log_level, CPU, now=lambda: float(next(ticks)))


def test_sums_by_name_and_starts_anew() -> None:
    timers = ticking(log_level=1)
    for _ in range(3):
        with timers("forward-backward"):
            pass
    with timers("optimizer"):
        pass
    assert timers.take() == {"forward-backward": 3.0, "optimizer": 1.0}
    assert timers.take() == {}


def test_outer_phases_contain_inner_ones() -> None:
    timers = ticking(log_level=2)
    with timers("step", level=0), timers("forward-backward"), timers("forward", level=2):
        pass
    assert timers.take() == {"step": 5.0, "forward-backward": 3.0, "forward": 1.0}


@pytest.mark.parametrize(
    ("log_level", "names"), [(0, ["step"]), (1, ["step", "phase"]), (2, ["step", "phase", "kind"])]
)
def test_levels(log_level: int, names: list[str]) -> None:
    timers = ticking(log_level)
    for level, name in enumerate(("step", "phase", "kind")):
        with timers(name, level):
            pass
    assert list(timers.take()) == names


def test_a_phase_that_fails_is_still_timed() -> None:
    timers = ticking(log_level=1)
    with pytest.raises(KeyError), timers("phase"):
        raise KeyError
    assert timers.take() == {"phase": 1.0}


def test_waits_for_the_device_only_above_level_0(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    timers = Timers(1, torch.device("cuda", 0))
    with timers("step", level=0), timers("kind", level=2):
        pass
    assert waits == []
    with timers("phase"):
        pass
    assert len(waits) == 2
