# SPDX-License-Identifier: Apache-2.0
import resource
import sys

import pytest
import torch

from megatron_core.training.device_memory import peak_memory_bytes

CPU = torch.device("cpu")


def test_the_peak_of_the_process_grows_with_what_it_holds() -> None:
    before = peak_memory_bytes(CPU)
    size = before + 2**25
    held = torch.ones(size, dtype=torch.uint8)
    assert before > 2**20
    assert peak_memory_bytes(CPU) >= held.numel()
    del held
    assert peak_memory_bytes(CPU) >= size, "a peak does not fall"


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_kernel_s_unit(platform: str, unit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: type("Usage", (), {"ru_maxrss": 5000})())
    assert peak_memory_bytes(CPU) == 5000 * unit


def test_cuda_asks_the_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123)
    assert peak_memory_bytes(torch.device("cuda", 0)) == 123
