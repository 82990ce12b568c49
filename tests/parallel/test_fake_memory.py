# SPDX-License-Identifier: Apache-2.0
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from megatron_core.parallel.fake_memory import is_fake, only_fakes_are_made


def test_fake_tensors_are_known_inside_and_outside_of_their_mode() -> None:
    real = torch.zeros(2)
    assert not only_fakes_are_made()
    with FakeTensorMode():
        fake = torch.zeros(2)
        assert only_fakes_are_made()
    assert is_fake(fake) and not is_fake(real) and not only_fakes_are_made()
