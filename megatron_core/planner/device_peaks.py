# SPDX-License-Identifier: Apache-2.0
"""Peak dense matrix throughput of known GPUs, from their data sheets, to set achieved FLOP/s against.

Vendors quote sparse figures first; these are the dense ones (half). fp32 is the plain fp32 rate, without TF32, which
is what the fp32 mode computes in. A precision that a GPU has no hardware for has no peak.
"""

from dataclasses import dataclass

from megatron_core.config.optim import Precision


@dataclass(frozen=True)
class DevicePeak:
    """TFLOP/s of one device whose name, as the driver gives it, contains all of `words`."""

    words: tuple[str, ...]
    fp16: float
    bf16: float | None
    fp32: float


# The first match counts, so special forms stand before the general one.
DEVICE_PEAKS: tuple[DevicePeak, ...] = (
    DevicePeak(("V100S",), fp16=130.0, bf16=None, fp32=16.4),
    DevicePeak(("V100", "PCIE"), fp16=112.0, bf16=None, fp32=14.0),
    DevicePeak(("V100",), fp16=125.0, bf16=None, fp32=15.7),
    DevicePeak(("A100",), fp16=312.0, bf16=312.0, fp32=19.5),
    DevicePeak(("A800",), fp16=312.0, bf16=312.0, fp32=19.5),
    DevicePeak(("A30",), fp16=165.0, bf16=165.0, fp32=10.3),
    DevicePeak(("A40",), fp16=149.7, bf16=149.7, fp32=37.4),
    DevicePeak(("A10",), fp16=125.0, bf16=125.0, fp32=31.2),
    DevicePeak(("H100", "PCIE"), fp16=756.0, bf16=756.0, fp32=51.2),
    DevicePeak(("H100", "NVL"), fp16=835.0, bf16=835.0, fp32=60.0),
    DevicePeak(("H100",), fp16=989.4, bf16=989.4, fp32=66.9),
    DevicePeak(("H800",), fp16=989.4, bf16=989.4, fp32=66.9),
    DevicePeak(("H200", "NVL"), fp16=835.0, bf16=835.0, fp32=60.0),
    DevicePeak(("GH200",), fp16=989.4, bf16=989.4, fp32=66.9),
    DevicePeak(("H200",), fp16=989.4, bf16=989.4, fp32=66.9),
    DevicePeak(("H20",), fp16=148.0, bf16=148.0, fp32=44.0),
    DevicePeak(("L40S",), fp16=362.0, bf16=362.0, fp32=91.6),
    DevicePeak(("L40",), fp16=181.0, bf16=181.0, fp32=90.5),
    DevicePeak(("L4",), fp16=121.0, bf16=121.0, fp32=30.3),
    DevicePeak(("T4",), fp16=65.0, bf16=None, fp32=8.1),
)


def peak_tflops(device_name: str, precision: Precision) -> float | None:
    """Dense peak of a device, TFLOP/s; None when the device, or its rate in this precision, is not known."""
    words = device_name.upper().replace("-", " ").replace("_", " ").split()
    for peak in DEVICE_PEAKS:
        if all(word in words for word in peak.words):
            return {"fp16": peak.fp16, "bf16": peak.bf16, "fp32": peak.fp32, "fp64": None}[precision]
    return None
