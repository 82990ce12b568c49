# SPDX-License-Identifier: Apache-2.0
"""The steps of a schedule or program around an offending one, as text for error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CONTEXT = 4  # steps shown before and after a marked one


def excerpt(stages: Sequence[Sequence[object]], marks: Mapping[int, int]) -> str:
    """One line a stage: the steps near its marked one (stage -> index), with an arrow before it.

    Stages without a mark show what lies around the first mark. A number tells the index of the first step shown.
    """
    assert marks, "nothing to point at"
    default = next(iter(marks.values()))
    lines = []
    for stage, steps in enumerate(stages):
        centre = marks.get(stage, min(default, max(len(steps) - 1, 0)))
        start, stop = max(0, centre - CONTEXT), min(len(steps), centre + CONTEXT + 1)
        cells = [f"--> {steps[i]}" if marks.get(stage) == i else str(steps[i]) for i in range(start, stop)]
        if marks.get(stage) == len(steps):
            cells.append("--> end")
        left, right = "… " if start > 0 else "", " …" if stop < len(steps) else ""
        lines.append(f"stage {stage:>3}, from step {start:>4}:  {left}{'  '.join(cells)}{right}")
    return "\n".join(lines)
