# SPDX-License-Identifier: Apache-2.0
"""What one rank is and runs on, as plain data that travels."""

import dataclasses
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from megatron_core.training.doctor.machine import has_infiniband, numa_node_of_pci, numa_nodes_of, soft_limit
from megatron_core.training.doctor.versions import program_versions
from megatron_core.training.launch import Launch


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Of one rank."""

    rank: int
    local_rank: int
    host: str
    device: str
    """What it computes on, for people."""
    pci_address: str
    """Of its GPU; empty without one."""
    device_node: int | None
    """NUMA node of its GPU."""
    cpus: tuple[int, ...]
    """Processors that it may run on."""
    cpu_nodes: tuple[int, ...]
    """NUMA nodes of these."""
    threads: int
    """Threads of torch."""
    versions: Mapping[str, str]
    settings: Mapping[str, str]
    """Environment variables that steer communication and threads."""
    open_files: int | None
    """Limit of descriptors; None: none."""
    locked_memory: int | None
    """Limit of locked memory in bytes; None: none."""
    infiniband: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "RankFacts":
        """Back from `to_json`, which another rank of the same job sent."""
        return cls(**{**value, "cpus": tuple(value["cpus"]), "cpu_nodes": tuple(value["cpu_nodes"])})

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)


def collect_facts(launch: Launch, device: torch.device, settings: Mapping[str, str]) -> RankFacts:
    """Look around; `settings` come from `launch.communication_settings`."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    name, address = describe_device(device)
    return RankFacts(
        rank=launch.rank,
        local_rank=launch.local_rank,
        host=socket.gethostname(),
        device=name,
        pci_address=address,
        device_node=numa_node_of_pci(address) if address else None,
        cpus=cpus,
        cpu_nodes=numa_nodes_of(cpus),
        threads=torch.get_num_threads(),
        versions=program_versions(),
        settings=dict(settings),
        open_files=soft_limit(resource.RLIMIT_NOFILE),
        locked_memory=soft_limit(resource.RLIMIT_MEMLOCK),
        infiniband=has_infiniband(),
    )


def one_rank_a_host(facts: Sequence[RankFacts]) -> list[int]:
    """The lowest rank of each host, in order; of all ranks' facts, in order of rank."""
    first: dict[str, int] = {}
    for fact in facts:
        first.setdefault(fact.host, fact.rank)
    return list(first.values())


def describe_device(device: torch.device) -> tuple[str, str]:
    """Name and PCI address of a device; no address for the CPU."""
    if device.type != "cuda":
        return device.type, ""
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs lack the addresses
    address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
    return f"{device} {properties.name}", address
