# SPDX-License-Identifier: Apache-2.0
"""Progress over bytes."""

from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tools.work_progress import WorkProgress


def size_text(nbytes: float) -> str:
    """Bytes in decimal units: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 999.5 or unit == "TB":
            break
        nbytes /= 1000
    return f"{nbytes:.3g} {unit}"


class ByteProgress(WorkProgress):
    """Told of bytes done by calling it."""

    def __init__(self, what: str, total: int) -> None:
        super().__init__(
            what,
            total,
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )

    def _stand(self, rate: float) -> str:
        return f"{size_text(self._done)} of {size_text(self._total)}, {size_text(rate)}/s"
