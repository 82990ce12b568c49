# SPDX-License-Identifier: Apache-2.0
"""Progress over tokens."""

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from tools.work_progress import WorkProgress


class TokenProgress(WorkProgress):
    """Told of tokens done by calling it."""

    def __init__(self, what: str, total: int, *, speaks: bool = True) -> None:
        """`speaks`: whether this rank is the one that shows it."""
        columns = (TextColumn("{task.fields[line]}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
        super().__init__(what, total, *columns, TimeRemainingColumn(), speaks=speaks)

    def _stand(self, rate: float) -> str:
        return f"{self._done:,} of {self._total:,} tokens, {rate:,.0f} tokens/s"
