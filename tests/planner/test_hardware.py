# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
import yaml

from megatron_core.errors import ConfigError
from megatron_core.planner.hardware import DIRECTORY, hardware, known_device

MINE = "device: {tflops: {fp32: 0.1}, vector_tflops: 0.1, memory_gb: 12, memory_gb_per_s: 20, link_gb_per_s: 1}\n"


@pytest.mark.parametrize("name", yaml.safe_load((DIRECTORY / "clusters.yaml").read_text()))
def test_all_known_clusters_load(name: str) -> None:
    found = hardware(name)
    assert found.name == name and found.devices_per_node >= 4 and found.device.peak("fp16") > 1e14


def test_a_file_of_ones_own_spells_its_device_out(tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text(MINE + "devices_per_node: 2\nnetwork_gb_per_s: 0.1\n")
    found = hardware(str(path))
    assert (found.name, found.device.memory_gb, found.devices_per_node) == ("box", 12.0, 2)


def test_a_file_may_name_a_known_device(tmp_path: Path) -> None:
    path = tmp_path / "box.yaml"
    path.write_text("{device: A100-SXM4-40GB, devices_per_node: 4, network_gb_per_s: 3}")
    assert hardware(str(path)).device == known_device("A100-SXM4-40GB")


@pytest.mark.parametrize(
    "text, message",
    [
        ("[1, 2]", "fields with values are expected"),
        ("a: [", "is no hardware file"),
        ("devices_per_node: 8", "device is missing"),
        ("{device: A100-SXM4-80GB, devices_per_node: 8}", "network_gb_per_s missing"),
        ("{device: A100-SXM4-80GB, devices_per_node: 8, network_gb_per_s: 1, colour: red}", "unknown colour"),
        ("{device: A100-SXM4-80GB, devices_per_node: lots, network_gb_per_s: 1}", "devices_per_node must be a number"),
        ("{device: A100, devices_per_node: 8, network_gb_per_s: 1}", "no device 'A100': choose one of V100"),
    ],
)
def test_a_bad_file_is_told_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        hardware(str(path))
    assert "bad.yaml" in str(raised.value) or "A100" in str(raised.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no hardware 'dgx': choose one of dgx-a100-80.*\.yaml"):
        hardware("dgx")


def test_a_precision_without_units_is_refused() -> None:
    with pytest.raises(ConfigError, match="V100-SXM2-32GB has no bf16 matrix products, only fp16 and fp32"):
        known_device("V100-SXM2-32GB").peak("bf16")
