# SPDX-License-Identifier: Apache-2.0
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from megatron_core.training.signals import STOP_SIGNALS, SignalFlag


@pytest.fixture(autouse=True)
def harmless() -> Iterator[list[int]]:
    """Signals that would end the test run are only counted; afterwards all is as it was."""
    counted: list[int] = []
    before = {number: signal.signal(number, lambda n, _: counted.append(n)) for number in STOP_SIGNALS}
    yield counted
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_remembered_and_the_old_handlers_come_back(number: signal.Signals, harmless: list[int]) -> None:
    with SignalFlag(enabled=True) as flag:
        assert flag.received is None
        os.kill(os.getpid(), number)
        assert flag.received is number
    assert not harmless and flag.received is number
    os.kill(os.getpid(), number)
    assert harmless == [number]


def test_the_first_signal_counts() -> None:
    with SignalFlag(enabled=True) as flag:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
    assert flag.received is signal.SIGUSR1


def test_handlers_come_back_after_an_error_too() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with pytest.raises(ValueError), SignalFlag(enabled=True):
        raise ValueError
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_not_enabled_it_installs_nothing(harmless: list[int]) -> None:
    with SignalFlag(enabled=False) as flag:
        os.kill(os.getpid(), signal.SIGTERM)
    assert flag.received is None and harmless == [signal.SIGTERM]


def test_a_program_that_is_started_meanwhile_dies_of_them_as_ever() -> None:
    with SignalFlag(enabled=True), subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        child.terminate()
        assert child.wait(timeout=30) == -signal.SIGTERM


def test_a_second_ctrl_c_ends_at_once_but_not_the_echo_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun passes on what the terminal has sent to all already."""
    now = [100.0]
    monkeypatch.setattr("megatron_core.training.signals.time.monotonic", lambda: now[0])
    with SignalFlag(enabled=True) as flag:
        os.kill(os.getpid(), signal.SIGINT)
        now[0] += 0.3
        os.kill(os.getpid(), signal.SIGINT)
        assert flag.received is signal.SIGINT
        now[0] += 1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
