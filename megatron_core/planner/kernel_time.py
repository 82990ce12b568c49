# SPDX-License-Identifier: Apache-2.0
"""How long a device takes for work: a roofline a kernel, with the waves in which tiles fill its multiprocessors.

A product is cut into tiles, of which each multiprocessor takes one at a time: a last wave that is nearly empty costs as
much as a full one. Of several tile sizes the library picks the best, and so does this. A device without tiles (a CPU)
is priced by products that were measured on it.
"""

import math
from collections.abc import Iterable

from megatron_core.planner.constants import Constants
from megatron_core.planner.engine import Engine
from megatron_core.planner.hardware import Device, MeasuredMatmul
from megatron_core.planner.operator_time import OperatorTime
from megatron_core.planner.work import Matmul, Operator, Pass

# Rows and columns of a tile, and the share of a large tile's speed that it reaches: small ones load more for each FLOP.
_TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.94), (64, 128, 0.75), (128, 64, 0.75), (64, 64, 0.6))
_ALIGNMENT = 8  # elements; matrix units take 16-bit operands in rows of 16 bytes


class KernelTime:
    """Prices work on one device in one precision."""

    def __init__(self, device: Device, constants: Constants, engine: Engine, precision: str, itemsize: int) -> None:
        """Raises ConfigError where the device has no products in this precision."""
        self._device, self._constants, self._itemsize = device, constants, itemsize
        self._unfused, self._kernel_s = engine.unfused, constants.kernel_s + engine.launch_s
        self._peak = device.peak(precision)
        self._memory = device.memory_gb_per_s * 1e9 * constants.memory_share
        self._known: dict[Matmul, float] = {}
        self._operators = OperatorTime(device)

    def of(self, work: Iterable[Matmul | Pass | Operator]) -> float:
        """Seconds of one kernel after the other. Raises ConfigError for an operator that was not measured."""
        return sum(map(self._one, work))

    def _one(self, one: Matmul | Pass | Operator) -> float:
        if isinstance(one, Matmul):
            return self.matmul(one)
        return self.passing(one) if isinstance(one, Pass) else self._operators.of(one)

    def passing(self, one: Pass) -> float:
        """Seconds of elementwise kernels."""
        return self.moving(one.nbytes * self._unfused) + one.kernels * self._kernel_s

    def moving(self, nbytes: float) -> float:
        """Seconds to move so many bytes between memory and multiprocessors."""
        return nbytes / self._memory

    def matmul(self, one: Matmul) -> float:
        """Seconds of a product."""
        if one not in self._known:
            self._known[one] = self._matmul(one)
        return self._known[one]

    def _matmul(self, one: Matmul) -> float:
        if not self._device.multiprocessors:
            return one.flops / (_measured_tflops(one, self._device.measured_matmuls) * 1e12)
        compute = min(self._in_waves(one, *tile) for tile in _TILES)
        if self._itemsize == 2 and (one.k % _ALIGNMENT or one.n % _ALIGNMENT):
            compute = max(compute, one.flops / (self._device.vector_tflops * 1e12 * self._constants.memory_share))
        operands = (one.m * one.k + one.k * one.n + one.m * one.n) * one.batch * self._itemsize
        return max(compute, self.moving(operands)) + self._kernel_s

    def _in_waves(self, one: Matmul, rows: int, columns: int, share: float) -> float:
        tiles = math.ceil(one.m / rows) * math.ceil(one.n / columns) * one.batch
        waves = math.ceil(tiles / self._device.multiprocessors)
        wave_flops = 2 * rows * columns * one.k * self._device.multiprocessors
        return waves * (wave_flops / (self._peak * self._constants.matmul_share * share) + self._constants.wave_s)


def _measured_tflops(one: Matmul, measured: Iterable[MeasuredMatmul]) -> float:
    """Speed of the measured product that is nearest in shape (by the logarithms of its dims)."""

    def distance(other: MeasuredMatmul) -> float:
        pairs = ((one.m, other.m), (one.n, other.n), (one.k, other.k))
        return sum(math.log(mine / theirs) ** 2 for mine, theirs in pairs)

    return min(measured, key=distance).tflops
