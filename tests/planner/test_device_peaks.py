# SPDX-License-Identifier: Apache-2.0
import pytest

from megatron_core.planner.device_peaks import DEVICE_PEAKS, peak_tflops


@pytest.mark.parametrize(
    ("name", "precision", "peak"),
    [
        ("Tesla V100-SXM2-32GB", "fp16", 125.0),
        ("Tesla V100-PCIE-16GB", "fp16", 112.0),
        ("Tesla V100S-PCIE-32GB", "fp16", 130.0),
        ("Tesla V100-SXM3-32GB", "fp32", 15.7),
        ("NVIDIA A100-SXM4-80GB", "bf16", 312.0),
        ("NVIDIA A100 80GB PCIe", "bf16", 312.0),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756.0),
        ("NVIDIA H100 NVL", "bf16", 835.0),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.0),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA H20", "bf16", 148.0),
        ("NVIDIA L40S", "fp16", 362.0),
        ("NVIDIA L4", "fp16", 121.0),
        ("Tesla T4", "fp16", 65.0),
    ],
)
def test_names_as_drivers_give_them(name: str, precision: str, peak: float) -> None:
    assert peak_tflops(name, precision) == peak  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "precision"),
    [("Tesla V100-SXM2-32GB", "bf16"), ("cpu", "bf16"), ("NVIDIA A1000", "bf16"), ("NVIDIA A100-SXM4-80GB", "fp64")],
)
def test_no_guess_where_nothing_is_known(name: str, precision: str) -> None:
    assert peak_tflops(name, precision) is None  # type: ignore[arg-type]


def test_every_entry_is_reached_by_its_own_words() -> None:
    for peak in DEVICE_PEAKS:
        assert peak_tflops("NVIDIA " + " ".join(peak.words), "fp16") == peak.fp16
