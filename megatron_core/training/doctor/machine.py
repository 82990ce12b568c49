# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of this node: NUMA nodes, processors, limits."""

import resource
from collections.abc import Iterable
from pathlib import Path

from megatron_core.training.doctor.number_ranges import parse_number_ranges

SYSFS = Path("/sys")


def numa_nodes_of(cpus: Iterable[int], sysfs: Path = SYSFS) -> tuple[int, ...]:
    """NUMA nodes that have some of these processors; empty where the kernel does not say."""
    wanted = set(cpus)
    found = []
    for path in sysfs.glob("devices/system/node/node[0-9]*/cpulist"):
        if wanted & {*parse_number_ranges(path.read_text())}:
            found.append(int(path.parent.name.removeprefix("node")))
    return tuple(sorted(found))


def numa_node_of_pci(address: str, sysfs: Path = SYSFS) -> int | None:
    """NUMA node of a device such as 0000:3b:00.0; None where the kernel does not say."""
    try:
        node = int((sysfs / "bus/pci/devices" / address.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def has_infiniband(sysfs: Path = SYSFS) -> bool:
    """Whether there is an InfiniBand or RoCE device."""
    return any(sysfs.glob("class/infiniband/*"))


def soft_limit(which: int) -> int | None:
    """A resource limit (RLIMIT_NOFILE, RLIMIT_MEMLOCK in bytes); None where there is none."""
    limit = resource.getrlimit(which)[0]
    return None if limit == resource.RLIM_INFINITY else limit
