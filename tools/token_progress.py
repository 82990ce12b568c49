# SPDX-License-Identifier: Apache-2.0
"""Progress over tokens with the time left: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

_SECONDS_A_LINE = 10.0


class TokenProgress:
    """Told of tokens done by calling it; use as a context manager."""

    def __init__(self, what: str, total: int, *, speaks: bool = True) -> None:
        """`speaks`: whether this rank is the one that shows it."""
        self._console = Console(stderr=True, quiet=not speaks)
        self._what, self._total, self._done = what, total, 0
        self._started = self._last_line = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        shown = speaks and self._console.is_terminal
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True, disable=not shown)
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> "TokenProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, tokens: int) -> None:
        """So many more tokens are done."""
        self._done += tokens
        now = time.monotonic()
        line = self.line(now - self._started)
        self._bar.update(self._task, completed=self._done, description=line)
        if not self._console.is_terminal and now - self._last_line >= _SECONDS_A_LINE:
            self._last_line = now
            self._console.print(line, highlight=False, soft_wrap=True)

    def line(self, seconds: float) -> str:
        """Where the work stands after so many seconds."""
        rate = self._done / max(seconds, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        return f"{self._what}: {self._done:,} of {self._total:,} tokens, {rate:,.0f} tokens/s, about {left:.0f} s left"
