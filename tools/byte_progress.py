# SPDX-License-Identifier: Apache-2.0
"""Progress over bytes with the time left: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_SECONDS_A_LINE = 10.0


def size_text(nbytes: float) -> str:
    """Bytes in decimal units: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 999.5 or unit == "TB":
            break
        nbytes /= 1000
    return f"{nbytes:.3g} {unit}"


class ByteProgress:
    """Told of bytes done by calling it; use as a context manager."""

    def __init__(self, what: str, total: int) -> None:
        self._console = Console(stderr=True)
        self._what, self._total, self._done = what, total, 0
        self._started = self._last_line = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> "ByteProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, nbytes: int) -> None:
        """So many more bytes are done."""
        self._done += nbytes
        self._bar.update(self._task, completed=self._done)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line >= _SECONDS_A_LINE:
            self._last_line = now
            self._console.print(self.line(now - self._started), highlight=False, soft_wrap=True)

    def line(self, seconds: float) -> str:
        """Where the work stands after so many seconds."""
        rate = self._done / max(seconds, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        return (
            f"{self._what}: {size_text(self._done)} of {size_text(self._total)}, {size_text(rate)}/s, about "
            f"{left:.0f} s left"
        )
