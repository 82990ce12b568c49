# SPDX-License-Identifier: Apache-2.0
"""The mark of host memory belongs to the storage, whoever looks at it."""

import gc

import torch

from megatron_core.parallel.host_storage import as_host, host_like, on_host


def test_views_of_marked_memory_are_host_memory() -> None:
    whole = torch.zeros(10)
    as_host(whole.untyped_storage())
    part = whole[2:4]
    del whole
    gc.collect()
    assert on_host(part.untyped_storage())
    assert not on_host(part.clone().untyped_storage())


def test_the_mark_ends_with_the_memory() -> None:
    for _ in range(3):
        storage = torch.zeros(10).untyped_storage()
        assert not on_host(storage)
        as_host(storage)


def test_memory_for_a_copy() -> None:
    copy = host_like(torch.zeros(7, dtype=torch.bfloat16))
    assert copy.shape == (7,) and copy.dtype == torch.bfloat16 and not copy.is_pinned()
    assert on_host(copy.untyped_storage()) and copy.untyped_storage().nbytes() == 14
