# SPDX-License-Identifier: Apache-2.0
"""SIGTERM, SIGUSR1 and SIGINT as a flag: who is told to leave finishes the step first.

SIGTERM is what schedulers and torchrun send before they kill, SIGUSR1 what sbatch's `--signal` is told to send some
time before the end of an allocation, SIGINT what Ctrl-C sends. The handler does nothing but remember: the training loop
asks, at points where all ranks can leave together.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_ONE_PRESS_S = 1.0  # Ctrl-C reaches a rank from the terminal and once more from torchrun
_Handler = Callable[[int, FrameType | None], Any] | int | None


class SignalFlag:
    """Remembers the first of STOP_SIGNALS while the context is open; main thread only.

    A second Ctrl-C, a second or more after the first, is a KeyboardInterrupt as ever.

    Not enabled it installs nothing, and signals do what they did.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._previous: dict[signal.Signals, _Handler] = {}
        self.received: signal.Signals | None = None
        """The first signal that came; later ones change nothing."""
        self._pressed: float | None = None

    def __enter__(self) -> "SignalFlag":
        if self._enabled:
            for number in STOP_SIGNALS:
                self._previous[number] = signal.signal(number, self._remember)
                # Libraries beneath torch need not retry a system call that a signal cut short.
                signal.siginterrupt(number, False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: a handler that no Python code installed, and that Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _remember(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT:
            if self._pressed is not None and time.monotonic() - self._pressed >= _ONE_PRESS_S:
                raise KeyboardInterrupt
            self._pressed = self._pressed or time.monotonic()
        if self.received is None:
            self.received = signal.Signals(number)
