# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.training.throughput import Yardstick


def test_rates_of_a_step() -> None:
    rule = Yardstick(seq_length=2048, flops_per_token=6 * 10**9, num_devices=8, peak_tflops=312.0)
    rates = rule.rates(batch_size=64, step_time_s=0.5)
    assert rates.tokens_per_s == 262_144
    assert rates.tflops_per_device == pytest.approx(196.608)
    assert rates.mfu == pytest.approx(196.608 / 312)


def test_no_utilisation_without_a_peak() -> None:
    assert Yardstick(seq_length=1, flops_per_token=1, num_devices=1).rates(1, 1.0).mfu is None
