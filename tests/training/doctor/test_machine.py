# SPDX-License-Identifier: Apache-2.0
import resource
from pathlib import Path

from megatron_core.training.doctor.machine import has_infiniband, numa_node_of_pci, numa_nodes_of, soft_limit


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_numa_nodes(tmp_path: Path) -> None:
    write(tmp_path / "devices/system/node/node0/cpulist", "0-3,8-11\n")
    write(tmp_path / "devices/system/node/node1/cpulist", "4-7\n")
    write(tmp_path / "devices/system/node/node2/cpulist", "\n")
    assert numa_nodes_of([1, 9], tmp_path) == (0,)
    assert numa_nodes_of(range(12), tmp_path) == (0, 1)
    assert numa_nodes_of([1], tmp_path / "absent") == ()


def test_a_gpu_and_its_node(tmp_path: Path) -> None:
    write(tmp_path / "bus/pci/devices/0000:3b:00.0/numa_node", "1\n")
    write(tmp_path / "bus/pci/devices/0000:5e:00.0/numa_node", "-1\n")
    assert numa_node_of_pci("0000:3B:00.0", tmp_path) == 1
    assert numa_node_of_pci("0000:5e:00.0", tmp_path) is None
    assert numa_node_of_pci("0000:00:00.0", tmp_path) is None


def test_infiniband(tmp_path: Path) -> None:
    assert not has_infiniband(tmp_path)
    (tmp_path / "class/infiniband/mlx5_0").mkdir(parents=True)
    assert has_infiniband(tmp_path)


def test_limits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        assert soft_limit(resource.RLIMIT_CORE) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert soft_limit(resource.RLIMIT_CPU) in (None, resource.getrlimit(resource.RLIMIT_CPU)[0])
