# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

from megatron_core.planner.hardware import hardware
from megatron_core.planner.hardware_text import hardware_text
from tests.planner.measured import cpu


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    box = cpu({"layer": [(1, 1e-5)], "layer backward": [(1, 2.5e-4)], "all_reduce": [(4096, 0.25), (8192, 123456.0)]})
    path = tmp_path / "box.yaml"
    path.write_text(hardware_text(box, "of a test"), encoding="utf-8")
    read = hardware(str(path))
    kept = dataclasses.replace(box.device, measured_operators=read.device.measured_operators)
    assert read == dataclasses.replace(box, device=kept)
    assert [one.seconds for one in read.device.measured_operators] == [1e-5, 2.5e-4, 0.25, 123500.0]
    assert path.read_text().startswith("# of a test\ndevice:\n  name: box\n  tflops: {fp32: 0.1000}\n")
