# SPDX-License-Identifier: Apache-2.0
"""Finds the time model's constants from measured steps: least squares of the logarithms of predicted over measured.

A pattern search: each constant in turn is multiplied and divided by a step that shrinks when nothing helps. Eight
constants and some thirty rows need no better. A weak pull to where the search starts keeps what no row tells apart
near its physical guess.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

from megatron_core.planner.constants import Constants
from megatron_core.planner.hardware import Hardware
from megatron_core.planner.step_time import StepModel
from megatron_core.planner.workload import Workload

Measured = tuple[Workload, Hardware, float]
"""A step, where it ran, and its seconds."""
_PULL = 1e-4
_SHARES = ("matmul_share", "memory_share", "node_link_share", "network_share", "overlap_cost")


def fit(rows: Sequence[Measured], start: Constants, report: Callable[[str], None] = lambda line: None) -> Constants:
    """The constants that predict the rows best, from `start`; shares stay within 0 to 1."""
    best, badness = start, _badness(start, rows, start)
    factor = 1.2
    while factor > 1.005:
        improved = False
        for name in (field.name for field in dataclasses.fields(Constants)):
            for change in (factor, 1 / factor):
                value = getattr(best, name) * change
                if name in _SHARES and value > 1.0:
                    continue
                candidate = dataclasses.replace(best, **{name: value})
                if (found := _badness(candidate, rows, start)) < badness:
                    best, badness, improved = candidate, found, True
        if not improved:
            factor = math.sqrt(factor)
        report(f"factor {factor:.4f}: root mean square of log errors {math.sqrt(badness):.4f}")
    return best


def _badness(constants: Constants, rows: Sequence[Measured], start: Constants) -> float:
    errors = [
        math.log(StepModel(workload, hardware, constants).step(quick=True).total / seconds)
        for workload, hardware, seconds in rows
    ]
    pulled = [
        math.log(getattr(constants, field.name) / getattr(start, field.name)) for field in dataclasses.fields(Constants)
    ]
    return sum(error**2 for error in errors) / len(errors) + _PULL * sum(one**2 for one in pulled)
