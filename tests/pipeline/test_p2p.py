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
def test_what_was_sent_is_let_go_once_an_answer_came(ctx: ParallelContext) -> None:
    """gloo never reports a send as done; a gradient that comes back proves that the activation was received."""
    box, first = mailbox(ctx), ctx.pp.coordinate == 0
    peer = 1 - ctx.rank
    own, other = ("activation", "gradient") if first else ("gradient", "activation")
    sent = []
    for microbatch in range(3):
        tensor = torch.ones(SHAPE, dtype=torch.float64)
        sent.append(weakref.ref(tensor))
        box.put(own, (microbatch, 0), tensor)
        del tensor
        box.post(Exchange((Transfer(first, peer, "activation", microbatch, 0),
                           Transfer(not first, peer, "gradient", microbatch, 0))))  # fmt: skip
        box.take(other, (microbatch, 0))
        assert [reference() for reference in sent] == [None] * (microbatch + 1)
    box.close()
