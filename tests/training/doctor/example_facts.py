# SPDX-License-Identifier: Apache-2.0
"""A rank as the doctor may find it."""

from megatron_core.training.doctor.facts import RankFacts


def example(rank: int = 0, host: str = "n1", **changed: object) -> RankFacts:
    """A rank on a healthy node with a GPU."""
    values: dict[str, object] = {
        "rank": rank,
        "local_rank": rank % 4,
        "host": host,
        "device": f"cuda:{rank % 4} NVIDIA A100",
        "pci_address": f"0000:{rank % 4:02x}:00.0",
        "device_node": 0,
        "cpus": tuple(range(16)),
        "cpu_nodes": (0,),
        "threads": 4,
        "versions": {"torch": "2.13.0", "python": "3.11.7"},
        "settings": {"NCCL_DEBUG": "WARN"},
        "open_files": 65536,
        "locked_memory": None,
        "infiniband": True,
    }
    return RankFacts(**{**values, **changed})  # type: ignore[arg-type]
