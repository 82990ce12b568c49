# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from megatron_core.checkpoint.host_copy import HostCopy
from megatron_core.checkpoint.rectangle import whole
from megatron_core.checkpoint.writer import Shard


def _shards(device: str = "cpu") -> list[Shard]:
    torch.manual_seed(3)
    tensors = [torch.randn(3, 5), torch.randn(7).bfloat16(), torch.tensor(2.5).double(), torch.randn(4, 6).t()]
    return [
        Shard(name=f"w{n}", shape=tuple(t.shape), rectangle=whole(t.shape), values=t.to(device))
        for n, t in enumerate(tensors)
    ]


def _check(device: str) -> None:
    host_copy, shards = HostCopy(torch.device(device)), _shards(device)
    copies = host_copy.take(shards)
    before = [shard.values.cpu().clone() for shard in shards]
    for shard in shards:
        shard.values.add_(1.0)
    for copy, shard, value in zip(copies, shards, before):
        assert (copy.name, copy.rectangle) == (shard.name, shard.rectangle)
        assert copy.values.dtype == value.dtype and torch.equal(copy.values, value)
    again = host_copy.take(shards[1:])
    assert torch.equal(again[0].values, shards[1].values.cpu())
    assert again[0].values.data_ptr() == copies[0].values.data_ptr(), "the memory is used again"


def test_values_stay_as_they_were() -> None:
    _check("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_values_of_a_gpu() -> None:
    _check("cuda")


def test_memory_that_was_reserved_is_used() -> None:
    host_copy = HostCopy(torch.device("cpu"))
    host_copy.reserve(_shards())
    reserved = host_copy._buffer.data_ptr()
    assert host_copy.take(_shards())[0].values.data_ptr() == reserved


def test_nothing_to_copy() -> None:
    assert HostCopy(torch.device("cpu")).take([]) == []


def test_more_than_there_is() -> None:
    huge = torch.zeros(1).expand(2**60)
    shard = Shard(name="w", shape=(2**60,), rectangle=whole((2**60,)), values=huge)
    with pytest.raises(RuntimeError):
        HostCopy(torch.device("cpu")).take([shard])
