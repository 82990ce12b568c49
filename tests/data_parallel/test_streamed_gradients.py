# SPDX-License-Identifier: Apache-2.0
"""A bucket is open from its first contribution until it is sent, and its accumulator holds the step's sum."""

import pytest
import torch

from megatron_core.data_parallel.gradient_pool import GradientPool
from megatron_core.data_parallel.streamed_gradients import StreamedGradients
from megatron_core.parallel.collectives import DONE
from megatron_core.parallel.host_storage import on_host

CPU = torch.device("cpu")


def test_each_step_accumulates_anew() -> None:
    pool = GradientPool(6, 2, torch.float32, CPU)
    gradients = StreamedGradients(pool, 4, (2, 4))
    for _ in range(2):
        gradients.begin_step()
        for microbatch in range(3):
            for contribution in range(2):
                gradients.memory[contribution * 2 :].add_(microbatch + 1.0)
            gradients.send(DONE)
        pool.finish()
        assert gradients.owned.tolist() == [2 * (1 + 2 + 3)] * 2


@pytest.mark.parametrize("before", [1, 2])
def test_contributions_arrive_in_the_order_in_which_they_were_sent(before: int) -> None:
    """Whichever lane comes first after as many microbatches: a batch that grows may leave it the second one."""
    gradients = StreamedGradients(pool := GradientPool(2, 2, torch.float32, CPU), 2, (0, 2))
    for microbatches in (before, 2):
        gradients.begin_step()
        for microbatch in range(microbatches):
            gradients.memory.add_(microbatch + 1.0)
            gradients.send(DONE)
        pool.finish()
    assert gradients.owned.tolist() == [1.0 + 2.0] * 2


def test_nothing_of_the_device_is_taken_but_while_it_is_open() -> None:
    pool = GradientPool(4, 4, torch.bfloat16, CPU)
    first, second = (StreamedGradients(pool, 4, (0, 4)) for _ in range(2))
    lanes = [memory.data_ptr() for memory in pool.memory]
    for gradients in (first, second, first):
        assert gradients.memory.data_ptr() in lanes and not gradients.memory.any()
        gradients.memory.add_(1)
        gradients.send(DONE)
    assert len(pool.memory) == 2
    assert first.owned.dtype == torch.float32 and on_host(first.owned.untyped_storage())


def test_a_step_does_not_begin_within_a_microbatch() -> None:
    gradients = StreamedGradients(GradientPool(4, 4, torch.float32, CPU), 4, (0, 4))
    assert not gradients.memory.any()
    with pytest.raises(AssertionError, match="never complete"):
        gradients.begin_step()


def test_what_was_taken_stays_while_the_next_step_accumulates() -> None:
    pool = GradientPool(2, 2, torch.float32, CPU)
    gradients = StreamedGradients(pool, 2, (0, 2))

    def step(value: float) -> None:
        gradients.begin_step()
        gradients.memory.add_(value)
        gradients.send(DONE)
        pool.finish()

    step(1.0)
    first = gradients.take()
    step(2.0)
    assert (first.tolist(), gradients.owned.tolist()) == ([1.0] * 2, [2.0] * 2)
    second = gradients.take()
    step(3.0)
    assert (second.tolist(), gradients.owned.tolist()) == ([2.0] * 2, [3.0] * 2)
    assert gradients.take().data_ptr() != second.data_ptr() == gradients.owned.data_ptr(), "two sets are all"
