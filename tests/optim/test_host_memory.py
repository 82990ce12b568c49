# SPDX-License-Identifier: Apache-2.0
"""Host memory for states: zeros, apart from each other, where they were asked for, and errors that say what to do."""

import errno
import os
import sys
from pathlib import Path

import pytest
import torch

from megatron_core.errors import ConfigError
from megatron_core.optim.adamw import AdamHyper, Moments
from megatron_core.optim.host_adamw import HostAdamW, compiled_pass
from megatron_core.optim.host_memory import host_zeros
from tests.small_model import randn

LENGTHS = [1000, 1, 0, 4099]


def _backing(tensor: torch.Tensor) -> str:
    """The line of the process's memory map that a tensor lies in."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line
    raise AssertionError("the tensor lies nowhere")


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gives_zeros_that_do_not_overlap(tmp_path: Path, in_file: bool, dtype: torch.dtype) -> None:
    tensors = host_zeros(LENGTHS, dtype, tmp_path if in_file else None)
    assert [len(tensor) for tensor in tensors] == LENGTHS
    assert not any(tensor.any() for tensor in tensors)
    for number, tensor in enumerate(tensors):
        assert tensor.dtype == dtype
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(number + 1)
    for number, tensor in enumerate(tensors):
        assert (tensor == number + 1).all()


@pytest.mark.parametrize("in_file", [False, True])
def test_none_at_all(tmp_path: Path, in_file: bool) -> None:
    assert host_zeros([], torch.float32, tmp_path if in_file else None) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lies_where_it_was_put_and_leaves_no_name(tmp_path: Path) -> None:
    (spilled,) = host_zeros([1000], torch.float32, tmp_path)
    (held,) = host_zeros([1000], torch.float32)
    assert str(tmp_path) in _backing(spilled)
    assert "deleted" in _backing(spilled)
    assert str(tmp_path) not in _backing(held)
    assert list(tmp_path.iterdir()) == []


def test_the_optimizer_does_not_know(tmp_path: Path) -> None:
    found = []
    for directory in (None, tmp_path):
        weights, m, v = host_zeros([5000] * 3, torch.float32, directory)
        weights.copy_(randn(5000))
        adam = HostAdamW(AdamHyper(0.9, 0.95, 1e-8), threads=2, kernel=compiled_pass())
        for step in range(3):
            grad = randn(5000, seed=step).float()
            adam.update(
                weights, grad, Moments(m, v), None, applied_steps=step, lr=0.1, weight_decay=0.1, grad_factor=0.5
            )
        adam.close()
        found.append((weights, m, v))
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_a_disk_without_room_is_told_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"GB free, and this rank's states of the optimizer need 140737.5 GB"):
        host_zeros([2**45], torch.float32, tmp_path)


def test_a_disk_that_others_fill_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"No space left on device.*make room"):
        host_zeros([1000], torch.float32, tmp_path)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: No such file or directory"):
        host_zeros([1000], torch.float32, tmp_path / "absent")


def test_memory_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"host memory has no \d+.* GB .*--use-distributed-optimizer"):
        host_zeros([2**58], torch.float32)
