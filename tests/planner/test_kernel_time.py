# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from megatron_core.planner.constants import Constants
from megatron_core.planner.engine import BLOOM_2022, OURS
from megatron_core.planner.hardware import MeasuredMatmul, known_device
from megatron_core.planner.kernel_time import KernelTime
from megatron_core.planner.work import Matmul, Pass

A100 = known_device("A100-SXM4-80GB")
PLAIN = Constants(
    matmul_share=1.0,
    memory_share=1.0,
    node_link_share=1.0,
    network_share=1.0,
    kernel_s=0.0,
    wave_s=0.0,
    hop_s=0.0,
    overlap_cost=0.0,
)


def times(constants: Constants = PLAIN) -> KernelTime:
    return KernelTime(A100, constants, OURS, "bf16", 2)


def test_full_waves_of_tiles_reach_the_peak() -> None:
    one = Matmul(256 * 108, 128 * 4, 4096)
    assert times().matmul(one) == pytest.approx(one.flops / 312e12)


def test_a_last_wave_costs_as_much_as_a_full_one() -> None:
    """One tile too many for the waves: smaller tiles soften it, but it shows."""
    full, more = Matmul(256 * 108, 128, 65536), Matmul(256 * 109, 128, 65536)
    assert times().matmul(more) > 1.3 * times().matmul(full)


def test_what_moves_more_than_it_multiplies_is_bound_by_memory() -> None:
    one = Matmul(4096, 4096, 8)
    assert times().matmul(one) == pytest.approx(2 * (4096 * 8 * 2 + 4096 * 4096) / 2.039e12)


def test_dims_that_are_no_multiples_of_8_have_no_matrix_units() -> None:
    """A head dim of 108 made BLOOM candidates a third slower."""
    assert times().matmul(Matmul(2048, 2048, 108, 16)) > 5 * times().matmul(Matmul(2048, 2048, 112, 16))
    assert times().matmul(Matmul(2048, 2048, 108, 16)) == pytest.approx(2 * 2048**2 * 108 * 16 / 19.5e12)


def test_elementwise_kernels_move_bytes_and_begin() -> None:
    constants = dataclasses.replace(PLAIN, kernel_s=1e-5, memory_share=0.5)
    assert times(constants).passing(Pass(10**9, 3)) == pytest.approx(10**9 / 1.0195e12 + 3e-5)


def test_blocking_launches_cost_every_kernel_their_wait() -> None:
    bloom = KernelTime(A100, PLAIN, BLOOM_2022, "fp16", 2)
    assert bloom.of([Pass(0, 2), Matmul(8, 8, 8)]) - times().of([Matmul(8, 8, 8)]) == pytest.approx(3 * 53e-6)


def test_a_device_without_tiles_goes_by_the_nearest_measured_product() -> None:
    measured = (
        MeasuredMatmul(m=512, n=512, k=512, tflops=0.1),
        MeasuredMatmul(m=2048, n=50304, k=512, tflops=0.05),
    )
    cpu = dataclasses.replace(A100, multiprocessors=0, measured_matmuls=measured)
    times = KernelTime(cpu, PLAIN, OURS, "bf16", 2)
    assert times.matmul(Matmul(2000, 40000, 512)) == pytest.approx(2 * 2000 * 40000 * 512 / 0.05e12)
    assert times.matmul(Matmul(600, 600, 512)) == pytest.approx(2 * 600 * 600 * 512 / 0.1e12)
