# SPDX-License-Identifier: Apache-2.0
"""Measured hardware for tests."""

from collections.abc import Mapping, Sequence

from megatron_core.planner.hardware import Device, Hardware, MeasuredMatmul, MeasuredOperator


def cpu(operators: Mapping[str, Sequence[tuple[int, float]]]) -> Hardware:
    """A box of two cores of 0.1 TFLOP/s with these operators: (amount, seconds) by name."""
    return Hardware(
        name="box",
        device=Device(
            name="box",
            tflops={"fp32": 0.1},
            vector_tflops=0.1,
            memory_gb=8.0,
            memory_gb_per_s=10.0,
            link_gb_per_s=1.0,
            measured_matmuls=(MeasuredMatmul(m=512, n=512, k=512, tflops=0.1),),
            measured_operators=tuple(
                MeasuredOperator(name=name, amount=amount, seconds=seconds)
                for name, points in operators.items()
                for amount, seconds in points
            ),
        ),
        devices_per_node=2,
        network_gb_per_s=1.0,
    )
