# SPDX-License-Identifier: Apache-2.0
"""Progress with the time left: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import Progress, ProgressColumn

_SECONDS_A_LINE = 10.0
T = TypeVar("T", bound="WorkProgress")


class WorkProgress(ABC):
    """Told of work done by calling it; use as a context manager."""

    def __init__(self, what: str, total: int, *columns: ProgressColumn, speaks: bool = True) -> None:
        """`columns` of the bar may show the field `line`; `speaks`: whether this rank is the one that shows it."""
        self._console = Console(stderr=True, quiet=not speaks)
        self._what, self._total, self._done = what, total, 0
        self._started = self._last_line = time.monotonic()
        shown = speaks and self._console.is_terminal
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not shown)
        self._task = self._bar.add_task(what, total=total, line=what)

    def __enter__(self: T) -> T:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, amount: int) -> None:
        """So much more is done."""
        self._done += amount
        now = time.monotonic()
        line = self.line(now - self._started)
        self._bar.update(self._task, completed=self._done, line=line)
        if not self._console.is_terminal and now - self._last_line >= _SECONDS_A_LINE:
            self._last_line = now
            self._console.print(line, highlight=False, soft_wrap=True)

    def line(self, seconds: float) -> str:
        """Where the work stands after so many seconds."""
        rate = self._done / max(seconds, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        return f"{self._what}: {self._stand(rate)}, about {left:.0f} s left"

    @abstractmethod
    def _stand(self, rate: float) -> str:
        """What is done, of what there is, and how much of it a second."""
