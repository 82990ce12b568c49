# SPDX-License-Identifier: Apache-2.0
"""A kept tensor is seen by hooks, watched for changes and let go with its holder."""

import weakref

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from megatron_core.tensor_parallel.kept import Kept


@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_gives_back_the_tensor(requires_grad: bool) -> None:
    x = torch.arange(3.0, requires_grad=requires_grad)
    kept = Kept(x)
    assert torch.equal(kept.tensor, x) and kept.tensor.data_ptr() == x.data_ptr()


def test_hooks_see_it_once_as_it_is_kept() -> None:
    seen = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.clone())
        return tensor + 1

    with saved_tensors_hooks(pack, lambda packed: packed * 10):
        kept = Kept(torch.zeros(2))
        assert len(seen) == 1, "it is saved before anything that follows"
    assert kept.tensor.tolist() == [10.0, 10.0]


def test_a_change_before_backward_is_an_error() -> None:
    x = torch.zeros(2)
    kept = Kept(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _ = kept.tensor


def test_it_lives_as_long_as_its_holder() -> None:
    x = torch.zeros(2)
    storage = weakref.ref(x.untyped_storage())
    kept = Kept(x)
    del x
    assert storage() is not None
    del kept
    assert storage() is None


def test_without_gradients_it_holds_nothing() -> None:
    x = torch.zeros(2)
    storage = weakref.ref(x.untyped_storage())
    with torch.no_grad():
        kept = Kept(x)
    del x
    assert storage() is None
    del kept
