# SPDX-License-Identifier: Apache-2.0
"""Copies wait for the device and the device for them, where each is told to and nowhere else."""

import pytest
import torch

from megatron_core.parallel.collectives import DONE
from megatron_core.parallel.host_copies import Copies, CudaCopies, DirectCopies, copies_of
from tests.fake_copies import Late


def _down_and_up(copies: Copies, device: torch.device, *, pinned: bool) -> None:
    """2 goes down after it was computed, and up again before it is used."""
    values, host = torch.ones(2**20, device=device), torch.zeros(2**20, pin_memory=pinned)
    values.mul_(2)
    copies.after_device()
    copies.after(DONE)
    wait = copies.copy(host, values)
    copies.before_device()
    values.fill_(5)
    wait()
    wait()
    assert host.eq(2).all(), "what came later must not be what was copied"
    copies.after_device()
    copies.copy(values, host)
    copies.before_device()
    assert values.add(1).eq(3).all()


def test_the_contract_holds_for_the_copies_that_tests_use() -> None:
    _down_and_up(Late(), torch.device("cpu"), pinned=False)
    _down_and_up(DirectCopies(), torch.device("cpu"), pinned=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    copies = copies_of(torch.device("cuda"))
    assert isinstance(copies, CudaCopies)
    _down_and_up(copies, torch.device("cuda"), pinned=True)


def test_on_a_cpu_they_are_direct() -> None:
    assert isinstance(copies_of(torch.device("cpu")), DirectCopies)
