# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
from types import SimpleNamespace

import pytest
import torch

from megatron_core.training.doctor.facts import RankFacts, collect_facts, describe_device, one_rank_a_host
from megatron_core.training.launch import Launch
from tests.training.doctor.example_facts import example


def test_facts_travel_as_json() -> None:
    facts = collect_facts(Launch(launcher="alone", rank=3, local_rank=1), torch.device("cpu"), {"NCCL_DEBUG": "INFO"})
    assert RankFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    assert (facts.rank, facts.local_rank, facts.host, facts.device) == (3, 1, socket.gethostname(), "cpu")
    assert facts.cpus == tuple(sorted(os.sched_getaffinity(0))) and facts.settings == {"NCCL_DEBUG": "INFO"}
    assert (facts.pci_address, facts.device_node) == ("", None)


def test_a_gpu_has_a_name_and_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="NVIDIA A100-SXM4-80GB", pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert describe_device(torch.device("cuda", 2)) == ("cuda:2 NVIDIA A100-SXM4-80GB", "0000:3b:00.0")


def test_the_first_rank_of_each_host() -> None:
    facts = [example(rank, host) for rank, host in enumerate(["a", "a", "b", "a", "c", "b"])]
    assert one_rank_a_host(facts) == [0, 2, 4]
    assert one_rank_a_host([]) == []
