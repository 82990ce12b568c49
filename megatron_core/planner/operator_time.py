# SPDX-License-Identifier: Apache-2.0
"""Times of operators between and beyond the amounts at which they were measured."""

from bisect import bisect_left

from megatron_core.errors import ConfigError
from megatron_core.planner.hardware import Device
from megatron_core.planner.work import Operator


class OperatorTime:
    """Prices what was measured on one device."""

    def __init__(self, device: Device) -> None:
        self._device = device.name
        self._points: dict[str, list[tuple[float, float]]] = {}
        for one in sorted(device.measured_operators, key=lambda one: one.amount):
            self._points.setdefault(one.name, []).append((one.amount, one.seconds))

    def of(self, one: Operator) -> float:
        """Seconds: a straight line between two measurements, in proportion beyond the last, as the first before it.

        Raises ConfigError where it was not measured.
        """
        if one.name not in self._points:
            raise ConfigError(f"{self._device}: {one.name} was not measured; run tools/plan.py calibrate anew")
        points = self._points[one.name]
        after = bisect_left(points, (one.amount,))
        if after == 0:
            return points[0][1]
        amount, seconds = points[after - 1]
        if after == len(points):
            return seconds * one.amount / amount
        share = (one.amount - amount) / (points[after][0] - amount)
        return seconds + share * (points[after][1] - seconds)
