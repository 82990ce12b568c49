# SPDX-License-Identifier: Apache-2.0
import weakref

import pytest
import torch

from megatron_core.parallel.context import ParallelContext, single_process_context
from megatron_core.pipeline.action import Exchange, Transfer
from megatron_core.pipeline.p2p import Mailbox
from tests.rank_pool import ranks

SHAPE = (2, 1, 3)


def mailbox(ctx: ParallelContext) -> Mailbox:
    return Mailbox(ctx, SHAPE, torch.float64)


def test_on_one_stage_neighbouring_chunks_hand_over() -> None:
    box = mailbox(single_process_context())
    forward, backward = torch.ones(SHAPE), torch.zeros(SHAPE)
    box.put("activation", (4, 0), forward)
    box.put("gradient", (4, 1), backward)
    assert box.take("activation", (4, 1)) is forward
    assert box.take("gradient", (4, 0)) is backward
    box.close()


def test_what_nobody_used_is_a_bug() -> None:
    box = mailbox(single_process_context())
    box.put("activation", (0, 0), torch.ones(SHAPE))
    with pytest.raises(AssertionError, match="nobody used"):
        box.close()


@ranks(2, pp=2)
def test_tensors_arrive_by_name_and_in_any_order_of_use(ctx: ParallelContext) -> None:
    """Two activations one way and a gradient the other in one exchange; taken last first."""
    box, first = mailbox(ctx), ctx.pp.coordinate == 0
    if first:
        box.put("activation", (0, 0), torch.full(SHAPE, 10.0, dtype=torch.float64))
        box.put("activation", (1, 0), torch.full(SHAPE, 11.0, dtype=torch.float64).transpose(0, 1).transpose(0, 1))
    else:
        box.put("gradient", (7, 0), torch.full(SHAPE, 7.0, dtype=torch.float64))
    box.post(
        Exchange(
            (
                Transfer(first, 1 - ctx.rank, "activation", 0, 0),
                Transfer(first, 1 - ctx.rank, "activation", 1, 0),
                Transfer(not first, 1 - ctx.rank, "gradient", 7, 0),
            )
        )
    )
    if first:
        assert box.take("gradient", (7, 0)).unique().tolist() == [7.0]
    else:
        assert box.take("activation", (1, 0)).unique().tolist() == [11.0]
        assert box.take("activation", (0, 0)).unique().tolist() == [10.0]
    box.close()


@ranks(2, pp=2)
def test_what_was_sent_is_let_go(ctx: ParallelContext) -> None:
    """Once the next exchange finds the first one done, its tensor is gone."""
    box, first = mailbox(ctx), ctx.pp.coordinate == 0
    sent = None
    for microbatch in range(2):
        if first:
            tensor = torch.ones(SHAPE, dtype=torch.float64)
            sent = sent or weakref.ref(tensor)
            box.put("activation", (microbatch, 0), tensor)
            del tensor
        box.post(Exchange((Transfer(first, 1 - ctx.rank, "activation", microbatch, 0),)))
        if not first:
            box.take("activation", (microbatch, 0))
        for work, _ in box._sending:
            work.wait()
    assert (sent is not None) == first and (sent is None or sent() is None)
    box.close()
